/** What cflow-chat does with a model. */
import { asCflowError, CflowError, printable } from '@cflow/format/internal/errors.js';
import { parseBytes } from '#cli-kit/bytes.js';
import { writeMessage, writeOutput } from '#cli-kit/output.js';
import { SIGNALS } from '#cli-kit/signals.js';
import { plural } from '#cli-kit/text.js';
import { Chat } from '../chat/chat.js';
import { templateVariables } from '../cli/arguments.js';
import { namingFlags } from '../cli/flags.js';
import { grammarOption } from '../cli/grammar.js';
import { Model } from '../model.js';
import type { GenerateOptions } from '../session.js';
import { type CommandContext, runCommandLine } from './commands.js';
import { Display } from './display.js';
import { addHistory, historyFile, readHistory, trimHistory } from './history.js';
import { type Input, pipedInput, TerminalInput } from './input.js';
import { ANSWER_TOKENS, type ChatArguments } from './options.js';
import { loadConversation } from './saved.js';
import { ConversionFailed, modelFile } from './source.js';

/** Thrown when stdout is a closed pipe. */
class ReaderLeft extends Error {}

/** Runs a conversation; resolves to the exit code. */
export async function chatWith(args: ChatArguments): Promise<number> {
  try {
    return await namingFlags(() => run(args));
  } catch (error) {
    if (error instanceof ReaderLeft) return 0;
    if (error instanceof ConversionFailed) return error.exitCode;
    throw error;
  }
}

async function run(args: ChatArguments): Promise<number> {
  const { threads, memory, context } = args;
  const bytes = memory === undefined ? undefined : parseBytes(memory, '--memory');
  const options = await generateOptions(args);
  const loaded = args.load === undefined ? [] : await loadConversation(args.load);
  const model = await Model.open(await modelFile(args.model, args), { threads, context, memory: bytes });
  try {
    if (model.fallback)
      await note(`native engine not available (${model.fallback}); using the reference engine`);
    const chat = new Chat(model, {
      system: args.system,
      variables: templateVariables(args),
      onDropped: (messages) =>
        void note(`the context is full: dropped the oldest ${plural(messages, 'message')}`),
    });
    await chat.check();
    chat.reset(loaded);
    await converse(chat, model, args, options);
    return 0;
  } finally {
    await model.close();
  }
}

async function converse(
  chat: Chat,
  model: Model,
  args: ChatArguments,
  options: Omit<GenerateOptions, 'ids'>,
): Promise<void> {
  const { stdin, stdout } = process;
  const interactive = Boolean(stdin.isTTY && stdout.isTTY);
  const abort = new AbortController();
  const input = interactive ? await terminal(args.history) : pipedInput(stdin, abort.signal);
  const onSignal = (signal: NodeJS.Signals) => {
    if (input instanceof TerminalInput) signal === 'SIGINT' ? input.interrupt() : input.close();
    else abort.abort();
  };
  for (const signal of SIGNALS) process.on(signal, onSignal);
  const colours = interactive && !process.env.NO_COLOR;
  const display = new Display({ write, terminal: interactive, colours });
  const { contextLength } = model.config;
  const context = { chat, contextLength, template: model.metadata?.tokenizer?.chatTemplate ?? '' };
  try {
    if (interactive) await write(`${display.dim('/help lists the commands, Ctrl-C ends an answer.')}\n`);
    for (;;) {
      const line = await input.next();
      if (line === undefined) break;
      if (!line.trim()) continue;
      if (!(await turn(line, { chat, context, input, interactive, display, args, options }))) break;
    }
    if (abort.signal.aborted) throw new CflowError('INTERRUPTED', 'interrupted');
  } finally {
    for (const signal of SIGNALS) process.off(signal, onSignal);
    input.close();
  }
}

interface Turn {
  readonly chat: Chat;
  readonly context: CommandContext;
  readonly input: Input;
  readonly interactive: boolean;
  readonly display: Display;
  readonly args: ChatArguments;
  readonly options: Omit<GenerateOptions, 'ids'>;
}

/** One command or message; resolves to false to leave. What is wrong with it does not end the conversation. */
async function turn(
  line: string,
  { chat, context, input, interactive, display, args, options }: Turn,
): Promise<boolean> {
  try {
    if (/^\/(?!\/)/.test(line)) {
      const said = await runCommandLine(line, context);
      if (said === undefined) return false;
      await (interactive ? write(`${said}\n`) : note(said));
      return true;
    }
    const message = line.replace(/^\/\//, '/');
    await input.answering(async (signal) => {
      for await (const { parts } of chat.reply(message, { ...options, signal }))
        if (!args.json) await display.show(parts);
    });
    await (args.json ? write(`${JSON.stringify(chat.messages.at(-1))}\n`) : display.end());
  } catch (error) {
    if (error instanceof ReaderLeft) throw error;
    const { code, message } = asCflowError(error);
    if (code === 'INTERRUPTED' && interactive) await display.end();
    else if (PASSING.has(code)) await note(printable(message));
    else throw error;
  }
  return true;
}

/** Errors of one message or command. */
const PASSING: ReadonlySet<string> = new Set([
  ...[
    'LIMIT_EXCEEDED',
    'USAGE',
    'UNSUPPORTED',
    'NOT_READABLE',
    'CONFIG_INVALID',
    'OUTPUT_EXISTS',
    'WRITE_FAILED',
  ],
]);

async function terminal(kept: boolean): Promise<TerminalInput> {
  const file = historyFile();
  let problem: string | undefined;
  if (kept) await trimHistory(file).catch(() => undefined);
  return new TerminalInput({
    stdin: process.stdin,
    stdout: process.stdout,
    history: kept ? await readHistory(file) : [],
    onEntry: (entry) => {
      if (!kept || problem !== undefined) return;
      addHistory(file, entry).catch((error: NodeJS.ErrnoException) => {
        problem = error.code ?? error.message;
        void note(`${file}: what is typed is not kept: ${problem}`);
      });
    },
  });
}

async function generateOptions(args: ChatArguments): Promise<Omit<GenerateOptions, 'ids'>> {
  const { maxTokens = ANSWER_TOKENS, temperature, topK, topP, minP, repetitionPenalty, seed } = args;
  return {
    ...{ maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed },
    grammar: await grammarOption(args),
  };
}

function note(text: string): Promise<void> {
  return writeMessage(`cflow-chat: note: ${text}\n`);
}

async function write(text: string): Promise<void> {
  if (!(await writeOutput(text))) throw new ReaderLeft();
}
