/** The options of cflow-run and their checks. */
import { CflowError, exitCodeHelp } from '@cflow/format';
import { packageVersion, usageError } from '@cflow/format/node';
import yargs from 'yargs';
import { parseBytes } from './bytes.js';
import type { TemplateVariables } from './chat/template.js';
import { ENGINES, type EngineName, type OpenModelOptions } from './model.js';
import { SAMPLER_DEFAULTS } from './sampling/sampler.js';
import { DEFAULT_MAX_TOKENS, type GenerateOptions } from './session.js';

const DISK = 'Weights fetched from disk:';

/** An option of the sampler; its default may be one of the model. */
const sampling = (name: keyof typeof SAMPLER_DEFAULTS, describe: string) =>
  ({
    type: 'number',
    requiresArg: true,
    describe: `${describe} [default: of the model, else ${SAMPLER_DEFAULTS[name]}]`,
  }) as const;

const OPTIONS = {
  prompt: { type: 'string', requiresArg: true, describe: 'text to continue' },
  'prompt-file': {
    type: 'string',
    requiresArg: true,
    describe: 'a file (UTF-8) that holds it; - for the input',
  },
  ids: { type: 'string', requiresArg: true, describe: 'token ids to continue, separated by commas' },
  chat: {
    type: 'boolean',
    default: false,
    describe: 'converse by the chat template: --prompt as one message, else every line of the input',
  },
  system: { type: 'string', requiresArg: true, describe: 'with --chat: the message of the system' },
  'template-option': {
    type: 'string',
    array: true,
    requiresArg: true,
    nargs: 1,
    describe: 'with --chat: a variable of the template, as enable_thinking=false; repeatable',
  },
  'max-tokens': {
    type: 'number',
    requiresArg: true,
    describe: `tokens to generate [default: ${DEFAULT_MAX_TOKENS}]`,
  },
  temperature: sampling('temperature', '0 = greedy'),
  'top-k': sampling('topK', '0 = all'),
  'top-p': sampling('topP', '1 = all'),
  'min-p': sampling('minP', 'least probability, as a share of the largest; 0 = all'),
  'typical-p': sampling('typicalP', 'locally typical sampling; 1 = off'),
  'repetition-penalty': {
    type: 'number',
    requiresArg: true,
    describe: 'divides logits of tokens of prompt and answer [default: of the model, else 1]',
  },
  'frequency-penalty': {
    type: 'number',
    requiresArg: true,
    describe: 'for each time that a token was generated',
  },
  'presence-penalty': { type: 'number', requiresArg: true, describe: 'for tokens that were generated' },
  'logit-bias': { type: 'string', requiresArg: true, describe: 'added to logits, as 15=-100,27=2.5' },
  stop: {
    type: 'string',
    array: true,
    requiresArg: true,
    nargs: 1,
    describe: 'text before which to stop; repeatable',
  },
  'json-schema': {
    type: 'string',
    requiresArg: true,
    describe: 'a file or a text with a JSON schema that the answer must satisfy',
  },
  grammar: { type: 'string', requiresArg: true, describe: 'a file with EBNF (GBNF) that it must follow' },
  logprobs: {
    type: 'number',
    requiresArg: true,
    describe: 'with --json: log-probabilities of the tokens, and of so many alternatives',
  },
  seed: { type: 'number', requiresArg: true, describe: '0 to 4294967295; random if absent' },
  'ignore-eos': { type: 'boolean', default: false, describe: 'go on after an end-of-text token' },
  perplexity: {
    type: 'string',
    requiresArg: true,
    describe: 'score the texts of a file, split at <|endoftext|>',
  },
  stories: {
    type: 'number',
    requiresArg: true,
    describe: 'with --perplexity: how many texts [default: all]',
  },
  tokens: {
    type: 'number',
    requiresArg: true,
    default: 256,
    describe: 'with --perplexity: tokens of each, BOS included',
  },
  engine: {
    choices: Object.keys(ENGINES) as EngineName[],
    describe: 'what executes the plan [default: native where it was built]',
  },
  threads: {
    type: 'number',
    requiresArg: true,
    describe: 'threads that compute [default: CPUs allowed, and one in phases too short to share]',
  },
  weights: {
    choices: ['auto', 'mapped', 'resident', 'direct'] as const,
    describe:
      'in the page cache, read into memory first, or fetched from disk as they are needed [default: auto, by the memory]',
  },
  memory: {
    type: 'string',
    requiresArg: true,
    describe: 'what the process may use, as 2GiB or 1500MB [default: most of what is available]',
  },
  context: {
    type: 'number',
    requiresArg: true,
    describe: 'positions to keep room for within --memory [default: 2048]',
  },
  'cache-memory': {
    type: 'string',
    requiresArg: true,
    describe: 'what the keys and values of a session may take; the rest goes to disk [default: by --memory]',
  },
  'spill-directory': {
    type: 'string',
    requiresArg: true,
    describe: 'where they go [default: TMPDIR, else /var/tmp]',
  },
  explain: {
    type: 'boolean',
    default: false,
    describe: 'say on stderr where weights go, why, and what was reached',
  },
  trace: { type: 'string', requiresArg: true, describe: 'write which experts the routings chose to a file' },
  transfers: {
    choices: ['stall', 'overlap', 'predict'] as const,
    describe: 'wait for each fetch, compute meanwhile, or also fetch ahead of the routing',
    group: DISK,
  },
  'expert-slots': { type: 'number', requiresArg: true, describe: 'experts to hold in memory', group: DISK },
  'stream-slots': { type: 'number', requiresArg: true, describe: 'fetched streams to hold', group: DISK },
  'half-life': {
    type: 'number',
    requiresArg: true,
    describe: 'tokens after which half of how often an expert was chosen is forgotten; 0 = LRU',
    group: DISK,
  },
  'io-block': { type: 'string', requiresArg: true, describe: 'bytes of a read, as 1MiB', group: DISK },
  'io-depth': { type: 'number', requiresArg: true, describe: 'reads under way at once', group: DISK },
  'io-backend': {
    choices: ['auto', 'uring', 'threads'] as const,
    describe: 'how they are made',
    group: DISK,
  },
  'io-mode': {
    choices: ['auto', 'buffered'] as const,
    describe: 'O_DIRECT where it works, or the page cache',
    group: DISK,
  },
  arithmetic: {
    choices: ['q8', 'f32'] as const,
    describe: 'int8 or exact f32 activations [default: q8 for quantized files]',
  },
  cache: {
    choices: ['f16', 'f32'] as const,
    describe: 'storage of keys and values [default: f16 with q8 arithmetic]',
  },
  profile: { type: 'boolean', default: false, describe: 'say on stderr where the time went' },
  json: { type: 'boolean', default: false, describe: 'print one JSON document instead of text' },
} as const;

export function commandLine(argv: string[]) {
  return yargs(argv)
    .scriptName('cflow-run')
    .usage('$0 <file> --prompt TEXT | --ids 1,2,3 | --chat | --perplexity FILE')
    .command('$0 <file>', 'Run a .cflow or .vflow model', (y) =>
      y.positional('file', { type: 'string', demandOption: true, describe: 'the model' }),
    )
    .options(OPTIONS)
    .parserConfiguration({ 'duplicate-arguments-array': false })
    .epilogue(exitCodeHelp())
    .strict()
    .version(packageVersion(import.meta.url))
    .alias({ h: 'help', V: 'version' })
    .exitProcess(false)
    .fail((message, error) => {
      throw error instanceof CflowError
        ? error
        : usageError('cflow-run', message ?? error?.message, Object.keys(OPTIONS));
    })
    .wrap(100);
}

/** The command line, parsed. */
export type Arguments = Awaited<ReturnType<ReturnType<typeof commandLine>['parse']>> & { file: string };

/** Options that the reference engine would ignore. */
const NATIVE_OPTIONS = [
  'threads',
  'weights',
  'arithmetic',
  'cache',
  'profile',
  'memory',
  'context',
  'cache-memory',
  'spill-directory',
  'explain',
  'trace',
  'expert-slots',
  'stream-slots',
  'half-life',
  'io-block',
  'io-depth',
  'io-backend',
  'io-mode',
] as const;

/** Flags of what is fetched whose names are not those of the library. */
const IO_FLAGS = { block: 'io-block', depth: 'io-depth', backend: 'io-backend', mode: 'io-mode' } as const;

const camelCase = (flag: string) => flag.replace(/-(.)/g, (_, letter: string) => letter.toUpperCase());

/** Flags by the names that the library has for them; its ids may come from --prompt. */
const FLAGS: ReadonlyMap<string, string> = new Map([
  ...Object.keys(OPTIONS).flatMap((flag) =>
    flag === 'ids' ? [] : [[camelCase(flag), `--${flag}`] as const],
  ),
  ...Object.entries(IO_FLAGS).map(([name, flag]) => [name, `--${flag}`] as const),
]);

/** Runs what calls the library: its errors name flags instead of the options that these become. */
export async function namingFlags<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw error instanceof CflowError ? namingFlag(error) : error;
  }
}

function namingFlag(error: CflowError): CflowError {
  const { code, problem, details } = error;
  // A field of a file is no option.
  const flag = details.file === undefined ? FLAGS.get(details.field ?? '') : undefined;
  return flag ? new CflowError(code, problem, { ...details, field: flag }) : error;
}

/** What was asked for of weights fetched from disk, by flag. */
export function fetchFlags(args: Arguments): string[] {
  const names = Object.entries(OPTIONS).filter(([, option]) => 'group' in option && option.group === DISK);
  return names.filter(([flag]) => args[flag] !== undefined).map(([flag]) => `--${flag}`);
}

/** How the model is opened. */
export function openOptions(args: Arguments): OpenModelOptions {
  const { engine, threads, weights, arithmetic, cache, profile, context, transfers, trace } = args;
  const { memory, cacheMemory, spillDirectory, expertSlots, streamSlots, halfLife, ioBlock } = args;
  const direct = {
    expertSlots,
    streamSlots,
    halfLife,
    block: ioBlock === undefined ? undefined : parseBytes(ioBlock, '--io-block'),
    depth: args.ioDepth,
    backend: args.ioBackend,
    mode: args.ioMode,
  };
  const given = Object.fromEntries(Object.entries(direct).filter(([, value]) => value !== undefined));
  return {
    engine,
    threads,
    weights,
    arithmetic,
    cache,
    profile,
    context,
    transfers,
    memory: memory === undefined ? undefined : parseBytes(memory, '--memory'),
    cacheMemory: cacheMemory === undefined ? undefined : parseBytes(cacheMemory, '--cache-memory'),
    spillDirectory,
    recordRoutings: trace !== undefined,
    ...(Object.keys(given).length > 0 && { direct: given }),
  };
}

/** @throws CflowError USAGE for what the parser lets through */
export function checkArguments(args: Arguments): void {
  const tasks = ['prompt', 'prompt-file', 'ids', 'perplexity'].filter((name) => args[name] !== undefined);
  // A conversation takes its first message from the prompt, or everything from the input.
  const fits = args.chat
    ? tasks.length === 0 || (tasks.length === 1 && tasks[0]!.startsWith('prompt'))
    : tasks.length === 1;
  if (!fits) {
    throw new CflowError(
      'USAGE',
      'give exactly one of --prompt, --prompt-file, --ids and --perplexity, or --chat',
      args.chat ? { remedy: '--chat goes with --prompt or --prompt-file only' } : {},
    );
  }
  const chatOnly = (['system', 'template-option'] as const).find((name) => args[name] !== undefined);
  if (chatOnly && !args.chat) throw new CflowError('USAGE', 'belongs to --chat', { field: `--${chatOnly}` });
  if (args.logprobs !== undefined && !args.json) {
    throw new CflowError('USAGE', 'belongs to --json', { field: '--logprobs' });
  }
  const ignored = NATIVE_OPTIONS.find((name) => args[name] !== undefined && args[name] !== false);
  if (args.engine === 'reference' && ignored) {
    throw new CflowError('USAGE', 'is an option of the native engine; the reference engine has none such', {
      field: `--${ignored}`,
      remedy: `leave it out, or use --engine native`,
    });
  }
  const { maxTokens, stories, tokens, threads } = args;
  const counts = { 'max-tokens': maxTokens, stories, tokens, threads };
  for (const [name, value] of Object.entries(counts)) {
    if (value === undefined || (Number.isInteger(value) && value > 0)) continue;
    throw new CflowError('USAGE', `${value} is not a whole number above 0`, { field: `--${name}`, value });
  }
  for (const name of NUMBERS) {
    if (Number.isNaN(args[name])) throw new CflowError('USAGE', 'not a number', { field: name });
  }
}

const NUMBERS = [
  ...(['temperature', 'topK', 'topP', 'minP', 'typicalP', 'seed', 'logprobs'] as const),
  ...(['repetitionPenalty', 'frequencyPenalty', 'presencePenalty'] as const),
] as const;

/** What to generate, as the library takes it. @throws CflowError USAGE */
export function generateOptions(args: Arguments): Omit<GenerateOptions, 'ids' | 'signal'> {
  const { maxTokens, ignoreEos, stop, logprobs, logitBias } = args;
  const { temperature, topK, topP, minP, typicalP, seed } = args;
  const { repetitionPenalty, frequencyPenalty, presencePenalty } = args;
  return {
    ...{ maxTokens, ignoreEos, stop, logprobs, temperature, topK, topP, minP, typicalP, seed },
    ...{ repetitionPenalty, frequencyPenalty, presencePenalty },
    logitBias: logitBias === undefined ? undefined : parseBias(logitBias),
  };
}

function parseBias(list: string): Record<number, number> {
  const pairs = list.split(',').map((pair) => /^\s*(\d+)\s*=\s*(-?\d+(?:\.\d+)?)\s*$/.exec(pair));
  if (pairs.every((pair) => pair !== null))
    return Object.fromEntries(pairs.map((pair) => [Number(pair[1]), Number(pair[2])]));
  throw new CflowError('USAGE', `${JSON.stringify(list)} is not a list like 15=-100,27=2.5`, {
    field: '--logit-bias',
  });
}

/** Variables of a chat template: the values are JSON, or texts where they are none. */
export function templateVariables({
  templateOption = [],
}: {
  readonly templateOption?: readonly string[] | undefined;
}): TemplateVariables {
  const pairs = templateOption.map((pair) => {
    const [, name, value] = /^([A-Za-z_]\w*)=(.*)$/s.exec(pair) ?? [];
    if (name !== undefined && value !== undefined) return [name, jsonOrText(value)] as const;
    throw new CflowError('USAGE', `${JSON.stringify(pair)} is not like enable_thinking=false`, {
      field: '--template-option',
    });
  });
  return Object.fromEntries(pairs);
}

function jsonOrText(value: string): unknown {
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}
