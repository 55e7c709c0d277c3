/** What begins with a slash. */
import { CflowError } from '@cflow/format/internal/errors.js';
import { plural } from '#cli-kit/text.js';
import type { Chat } from '../chat/chat.js';
import { loadConversation, saveConversation } from './saved.js';

/** What commands may do. */
export interface CommandContext {
  readonly chat: Chat;
  readonly contextLength: number;
  /** The source of the chat template. */
  readonly template: string;
}

interface Command {
  readonly name: string;
  readonly argument: string;
  readonly help: string;
  /** Resolves to what is to be said; undefined = leave. */
  readonly run: (
    context: CommandContext,
    argument: string,
  ) => Promise<string | undefined> | string | undefined;
}

const COMMANDS: readonly Command[] = [
  { name: 'help', argument: '', help: 'this list', run: () => help() },
  {
    name: 'reset',
    argument: '',
    help: 'forget the conversation, but not the system message',
    run: ({ chat }) => {
      chat.reset();
      return 'a new conversation';
    },
  },
  {
    name: 'system',
    argument: '[TEXT]',
    help: 'set the system message, or remove it',
    run: ({ chat }, text) => {
      chat.setSystem(text || undefined);
      return text ? 'system message set' : 'no system message';
    },
  },
  {
    name: 'save',
    argument: 'FILE',
    help: 'write the conversation to a file',
    run: async ({ chat }, file) => {
      await saveConversation(named(file), chat.messages);
      return `${plural(chat.messages.length, 'message')} in ${file}`;
    },
  },
  {
    name: 'load',
    argument: 'FILE',
    help: 'continue one that was saved',
    run: async ({ chat }, file) => {
      const messages = await loadConversation(named(file));
      chat.reset(messages);
      return `${plural(messages.length, 'message')} from ${file}`;
    },
  },
  { name: 'stats', argument: '', help: 'speed of the last answer, and room in the context', run: stats },
  {
    name: 'think',
    argument: 'on|off',
    help: 'whether to reason first, where the template has a choice',
    run: ({ chat, template }, choice) => {
      if (!/^(on|off)$/.test(choice)) throw new CflowError('USAGE', 'say /think on or /think off');
      if (!template.includes('enable_thinking'))
        throw new CflowError(
          'UNSUPPORTED',
          'the chat template of this model has no choice (no enable_thinking)',
        );
      chat.setVariables({ enable_thinking: choice === 'on' });
      return `reasoning ${choice}`;
    },
  },
  { name: 'quit', argument: '', help: 'leave; so do Ctrl-D and Ctrl-C twice', run: () => undefined },
];

/** Names, each with its slash. */
export const COMMAND_NAMES = COMMANDS.map(({ name }) => `/${name}`);

/**
 * Runs what a line says; resolves to what is to be said, or undefined to leave.
 * @throws CflowError USAGE for an unknown command, and as the commands
 */
export async function runCommandLine(line: string, context: CommandContext): Promise<string | undefined> {
  const [, name = '', argument = ''] = /^\/(\S*)\s*(.*)$/s.exec(line)!;
  const command = COMMANDS.find((each) => each.name === name);
  if (command) return command.run(context, argument.trim());
  throw new CflowError('USAGE', `there is no command /${name}`, {
    remedy: '/help lists them; a message that begins with a slash is written with two',
  });
}

function named(file: string): string {
  if (file) return file;
  throw new CflowError('USAGE', 'name a file');
}

function help(): string {
  const rows = COMMANDS.map(
    ({ name, argument, help: text }) => `  ${`/${name} ${argument}`.padEnd(16)}${text}`,
  );
  return ['Commands:', ...rows, 'Ctrl-C ends an answer. Pasted text may have several lines.'].join('\n');
}

function stats({ chat, contextLength }: CommandContext): string {
  const figures = chat.stats;
  if (!figures) return 'no answer yet';
  const { promptTokens, prefillMs, firstTokenMs, generatedTokens, tokensPerSecond } = figures;
  const rate = prefillMs > 0 ? (1000 * promptTokens) / prefillMs : 0;
  return [
    `answer    ${plural(generatedTokens, 'token')}, ${tokensPerSecond.toFixed(1)} tokens/s`,
    `prompt    ${plural(promptTokens, 'token')}, ${rate.toFixed(1)} tokens/s, first token after ${firstTokenMs.toFixed(0)} ms`,
    `context   ${promptTokens + generatedTokens} of ${plural(contextLength, 'token')}`,
  ].join('\n');
}
