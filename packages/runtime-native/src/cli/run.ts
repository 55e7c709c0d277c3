/** What cflow-run does with a model: generate, converse, score. */
import { createInterface } from 'node:readline';
import { buffer } from 'node:stream/consumers';
import { CflowError } from '@cflow/format';
import { decodeText, readTextFile } from '@cflow/format/node';
import { writeMessage, writeOutput } from '#cli-kit/output.js';
import { plural } from '#cli-kit/text.js';
import { Chat } from '../chat/chat.js';
import { Model } from '../model.js';
import { perplexity } from '../perplexity.js';
import { Sampler } from '../sampling/sampler.js';
import type { GeneratedToken, GenerateOptions, SessionStats } from '../session.js';
import { explainChoice, explainRun } from '../tiers/explain.js';
import { TraceFile, traceHeader } from '../tiers/trace-file.js';
import { generateOptions, openOptions, templateVariables } from './arguments.js';
import { offloadFlags } from './flags.js';
import { grammarOption } from './grammar.js';
import type { Arguments } from './options.js';
import { profileText } from './profile.js';

/** Thrown when stdout is a closed pipe. */
class ReaderLeft extends Error {}

async function untilReaderLeaves(work: () => Promise<number>): Promise<number> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof ReaderLeft) return 0;
    throw error;
  }
}

/** Runs the model as the arguments say; resolves to the exit code. */
export function runModel(args: Arguments, signal: AbortSignal): Promise<number> {
  return untilReaderLeaves(() => run(args, signal));
}

async function run(args: Arguments, signal: AbortSignal): Promise<number> {
  const model = await Model.open(args.file, openOptions(args));
  try {
    if (model.fallback)
      await note(`native engine not available (${model.fallback}); using the reference engine`);
    // Before the run, which may be long: find out now if the trace cannot be recorded or written.
    await using trace = args.trace === undefined ? undefined : await traceFile(model, args.trace, args.file);
    await tellChoice(model, args);
    if (args.chat) await chat(model, args, signal);
    else await (args.perplexity === undefined ? generate(model, args, signal) : score(model, args, signal));
    await trace?.finish(traceHeader(model.config), model.takeRoutings());
    return 0;
  } finally {
    await model.close();
  }
}

/** @throws CflowError UNSUPPORTED where no routings are recorded, and as `TraceFile.create` */
function traceFile(model: Model, path: string, modelPath: string): Promise<TraceFile> {
  const problem = model.fallback
    ? `the reference engine records no routings, and the native engine is not available: ${model.fallback}`
    : 'the model has no experts, so there are no routings';
  const records = !model.fallback && model.config.layers.some(({ experts }) => experts !== undefined);
  if (records) return TraceFile.create(path, [modelPath]);
  throw new CflowError('UNSUPPORTED', problem, { field: '--trace', remedy: 'leave it out' });
}

async function generate(model: Model, args: Arguments, signal: AbortSignal): Promise<void> {
  const promptIds =
    args.ids === undefined ? model.requireTokenizer().encode((await promptOf(args))!) : parseIds(args.ids);
  const seed = args.seed ?? new Sampler().seed;
  const grammar = await grammarOption(args);
  const options: GenerateOptions = { ...generateOptions(args), grammar, ids: promptIds, seed, signal };
  const session = model.createSession();
  const tokens: GeneratedToken[] = [];
  for await (const token of session.generate(options)) {
    tokens.push(token);
    if (!args.json) await write(model.tokenizer ? token.text : `${token.id}${token.finish ? '' : ','}`);
  }
  const stats = session.stats();
  if (!args.json) await write('\n');
  await showFigures(args, stats, stats.tokensPerSecond);
  if (!args.json) return;
  const ids = [...promptIds, ...tokens.map(({ id }) => id)];
  const finish = tokens.at(-1)?.finish;
  const text = wholeText(model, promptIds, tokens);
  const vocabulary = { model: model.config.vocabSize, tokenizer: model.tokenizer?.vocabSize };
  const engine = { name: model.engineName, fallback: model.fallback };
  const logprobs = args.logprobs === undefined ? undefined : tokens.map((each) => each.logprobs);
  await write(
    `${JSON.stringify({ promptIds, ids, text, finish, seed, logprobs, vocabulary, engine, stats })}\n`,
  );
}

/** Prompt and answer; a stop string may cut off part of the last token. */
function wholeText(model: Model, promptIds: readonly number[], tokens: readonly GeneratedToken[]): string {
  if (!model.tokenizer) return '';
  if (tokens.at(-1)?.finish !== 'stop')
    return model.tokenizer.decode([...promptIds, ...tokens.map(({ id }) => id)]);
  return model.tokenizer.decode(promptIds) + tokens.map(({ text }) => text).join('');
}

/** The text of --prompt or --prompt-file; undefined without either. */
async function promptOf({ prompt, promptFile }: Arguments): Promise<string | undefined> {
  if (promptFile === undefined) return prompt;
  if (promptFile !== '-') return readTextFile(promptFile);
  return decodeText(await buffer(process.stdin), 'stdin');
}

/** One message from the prompt, or one per line of stdin. */
async function chat(model: Model, args: Arguments, signal: AbortSignal): Promise<void> {
  const options = { ...generateOptions(args), grammar: await grammarOption(args), signal };
  const conversation = new Chat(model, {
    system: args.system,
    variables: templateVariables(args),
    onDropped: (messages) =>
      void note(`the context is full: dropped the oldest ${plural(messages, 'message')}`),
  });
  await conversation.check();
  const first = await promptOf(args);
  const input = first === undefined ? createInterface({ input: process.stdin, signal }) : [first];
  for await (const line of input) {
    if (!line.trim()) continue;
    try {
      await answer(conversation, line, options, args.json);
    } catch (error) {
      if (first !== undefined || !isOfTheMessage(error)) throw error;
      await note(`no answer: ${error.message}`);
    }
  }
  const { stats } = conversation;
  if (stats) await showFigures(args, stats, stats.tokensPerSecond);
}

/** An error of one message does not end the conversation. */
function isOfTheMessage(error: unknown): error is CflowError {
  return error instanceof CflowError && (error.code === 'LIMIT_EXCEEDED' || error.code === 'USAGE');
}

async function answer(
  conversation: Chat,
  line: string,
  options: Omit<GenerateOptions, 'ids'>,
  json: boolean,
): Promise<void> {
  let text = '';
  for await (const token of conversation.reply(line, options)) {
    text += token.text;
    if (!json) await write(token.text);
  }
  await write(json ? `${JSON.stringify({ role: 'assistant', content: text })}\n` : '\n');
}

async function score(model: Model, args: Arguments, signal: AbortSignal): Promise<void> {
  const path = args.perplexity!;
  const text = await readTextFile(path);
  let stats: SessionStats | undefined;
  const onStats = (next: SessionStats) => {
    stats = stats ? together(stats, next) : next;
  };
  const { documents: limit, tokens } = args;
  const result = await perplexity(model, text, { documents: limit, tokens, signal, onStats });
  if (stats) await showFigures(args, stats, 0);
  const engine = { name: model.engineName, fallback: model.fallback };
  if (args.json) return write(`${JSON.stringify({ ...result, engine, stats })}\n`);
  const { nats, perplexity: e, predictedTokens, documents } = result;
  const amount = `${plural(predictedTokens, 'token')}, ${plural(documents, 'document')}`;
  await write(`${nats.toFixed(4)} nats/token, perplexity ${e.toFixed(3)}, ${amount}\n`);
}

/** Figures of several documents; engine counters cover all sessions, so the last are those of all. */
function together(before: SessionStats, last: SessionStats): SessionStats {
  return {
    ...last,
    promptTokens: before.promptTokens + last.promptTokens,
    prefillMs: before.prefillMs + last.prefillMs,
    firstTokenMs: before.firstTokenMs,
  };
}

/** Before a run, on stderr: flags without effect, and with --explain the placement. */
async function tellChoice(model: Model, args: Arguments): Promise<void> {
  const asked = offloadFlags(args);
  if (asked.length === 0 && !args.explain) return;
  await using session = model.createSession();
  const choice = session.stats().native?.choice;
  if (!choice) return;
  if (choice.weights !== 'direct' && asked.length > 0)
    await note(`no effect of ${asked.join(', ')}: no weights are offloaded`);
  if (args.explain) await lines(explainChoice(choice));
}

function lines(texts: readonly string[]): Promise<void> {
  return writeMessage(texts.map((text) => `${text}\n`).join(''));
}

/** After a run, on stderr: --profile and --explain. */
async function showFigures(args: Arguments, stats: SessionStats, tokensPerSecond: number): Promise<void> {
  if (args.profile) await writeMessage(profileText(stats));
  if (args.explain && stats.native) await lines(explainRun(stats.native, { ...stats, tokensPerSecond }));
}

function note(text: string): Promise<void> {
  return writeMessage(`cflow-run: note: ${text}\n`);
}

function parseIds(list: string): number[] {
  if (!/^\s*\d+(\s*,\s*\d+)*\s*$/.test(list)) {
    throw new CflowError('USAGE', `${JSON.stringify(list)} is not a list like 1,2,3`, { field: '--ids' });
  }
  return list.split(',').map(Number);
}

async function write(text: string): Promise<void> {
  if (!(await writeOutput(text))) throw new ReaderLeft();
}
