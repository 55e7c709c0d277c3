/** The options of cflow-run. */
import { commandLine } from '#cli-kit/command.js';
import { DEFAULT_MAX_TOKENS, ENGINE_NAMES, PERPLEXITY_TOKENS, SAMPLER_DEFAULTS } from '../defaults.js';

/** The group of options that concern weights offloaded to disk. */
export const OFFLOAD = 'Weights offloaded to disk:';

/** An option of the sampler; the model may have a default of its own. */
const sampling = (name: keyof typeof SAMPLER_DEFAULTS, describe: string) =>
  ({
    type: 'number',
    requiresArg: true,
    describe: `${describe} [default: of the model, else ${SAMPLER_DEFAULTS[name]}]`,
  }) as const;

export const OPTIONS = {
  prompt: { type: 'string', requiresArg: true, describe: 'text to continue' },
  'prompt-file': {
    type: 'string',
    requiresArg: true,
    describe: 'file with the prompt (UTF-8); - reads stdin',
  },
  ids: { type: 'string', requiresArg: true, describe: 'token ids to continue, e.g. 1,2,3' },
  chat: {
    type: 'boolean',
    default: false,
    describe: 'use the chat template: --prompt is one message, else every line of stdin is one',
  },
  system: { type: 'string', requiresArg: true, describe: 'with --chat: system message' },
  'template-option': {
    type: 'string',
    array: true,
    requiresArg: true,
    nargs: 1,
    describe: 'with --chat: template variable, e.g. enable_thinking=false; repeatable',
  },
  'max-tokens': {
    type: 'number',
    requiresArg: true,
    describe: `tokens to generate [default: ${DEFAULT_MAX_TOKENS}]`,
  },
  temperature: sampling('temperature', 'sampling temperature; 0 = greedy'),
  'top-k': sampling('topK', 'keep the k most likely tokens; 0 = all'),
  'top-p': sampling('topP', 'nucleus sampling: total probability to keep; 1 = all'),
  'min-p': sampling('minP', 'minimum probability, relative to the largest; 0 = all'),
  'typical-p': sampling('typicalP', 'locally typical sampling; 1 = off'),
  'repetition-penalty': {
    type: 'number',
    requiresArg: true,
    describe: 'divides the logits of tokens in prompt and answer [default: of the model, else 1]',
  },
  'frequency-penalty': {
    type: 'number',
    requiresArg: true,
    describe: 'subtracted from a logit for every time its token was generated',
  },
  'presence-penalty': {
    type: 'number',
    requiresArg: true,
    describe: 'subtracted from the logits of tokens that were generated',
  },
  'logit-bias': {
    type: 'string',
    requiresArg: true,
    describe: 'added to logits by token id, e.g. 15=-100,27=2.5',
  },
  stop: {
    type: 'string',
    array: true,
    requiresArg: true,
    nargs: 1,
    describe: 'stop string, not printed; repeatable',
  },
  'json-schema': {
    type: 'string',
    requiresArg: true,
    describe: 'JSON schema that the answer must satisfy: a file, or the schema itself',
  },
  grammar: { type: 'string', requiresArg: true, describe: 'file with a grammar (GBNF) of the answer' },
  logprobs: {
    type: 'number',
    requiresArg: true,
    describe: 'with --json: log-probabilities of each token and of this many alternatives',
  },
  seed: {
    type: 'number',
    requiresArg: true,
    describe: 'seed of the sampler, 0 to 4294967295 [default: random]',
  },
  'ignore-eos': { type: 'boolean', default: false, describe: 'continue after an end-of-text token' },
  perplexity: {
    type: 'string',
    requiresArg: true,
    describe: 'file of documents separated by <|endoftext|>: print the perplexity of the model',
  },
  documents: {
    type: 'number',
    requiresArg: true,
    describe: 'with --perplexity: number of documents [default: all]',
  },
  tokens: {
    type: 'number',
    requiresArg: true,
    default: PERPLEXITY_TOKENS,
    describe: 'with --perplexity: tokens of each document, including BOS',
  },
  engine: {
    choices: ENGINE_NAMES,
    describe: 'engine [default: native if it was built]',
  },
  threads: {
    type: 'number',
    requiresArg: true,
    describe: 'compute threads [default: CPUs allowed, and one in phases too short to share]',
  },
  weights: {
    choices: ['auto', 'mapped', 'resident', 'direct'] as const,
    describe:
      'where weights are: memory-mapped (page cache), resident (read into memory first), or direct (offloaded to disk, read with O_DIRECT) [default: auto, by --memory]',
  },
  memory: {
    type: 'string',
    requiresArg: true,
    describe: 'memory limit of the process, e.g. 2GiB or 1500MB [default: most of what is available]',
  },
  context: {
    type: 'number',
    requiresArg: true,
    describe: 'positions of KV cache to plan for within --memory [default: 2048]',
  },
  'cache-memory': {
    type: 'string',
    requiresArg: true,
    describe: 'memory of the KV cache; the rest spills to disk [default: by --memory]',
  },
  'spill-directory': {
    type: 'string',
    requiresArg: true,
    describe: 'directory of the spilled KV cache [default: TMPDIR, else /var/tmp]',
  },
  explain: {
    type: 'boolean',
    default: false,
    describe: 'print on stderr where weights are placed, why, and the speed reached',
  },
  trace: { type: 'string', requiresArg: true, describe: 'write the routed experts of every token to a file' },
  transfers: {
    choices: ['stall', 'overlap', 'predict'] as const,
    describe: 'wait for each read, overlap reads with compute, or also predict the next experts',
    group: OFFLOAD,
  },
  'expert-slots': { type: 'number', requiresArg: true, describe: 'expert cache slots', group: OFFLOAD },
  'stream-slots': {
    type: 'number',
    requiresArg: true,
    describe: 'stream slots: offloaded streams held in memory',
    group: OFFLOAD,
  },
  'half-life': {
    type: 'number',
    requiresArg: true,
    describe: 'half-life of use counts in the expert cache, tokens; 0 = LRU',
    group: OFFLOAD,
  },
  'io-block': { type: 'string', requiresArg: true, describe: 'read size, e.g. 1MiB', group: OFFLOAD },
  'io-depth': {
    type: 'number',
    requiresArg: true,
    describe: 'queue depth: concurrent reads',
    group: OFFLOAD,
  },
  'io-backend': {
    choices: ['auto', 'uring', 'threads'] as const,
    describe: 'io_uring or threads',
    group: OFFLOAD,
  },
  'io-mode': {
    choices: ['auto', 'buffered'] as const,
    describe: 'direct I/O (O_DIRECT) if it works, or the page cache',
    group: OFFLOAD,
  },
  arithmetic: {
    choices: ['q8', 'f32'] as const,
    describe:
      'activations: quantized (int16 in decode, int8 in prefill) or f32 [default: q8 for quantized files]',
  },
  cache: {
    choices: ['f16', 'f32'] as const,
    describe: 'dtype of the KV cache [default: f16 with q8 arithmetic, else f32]',
  },
  profile: { type: 'boolean', default: false, describe: 'print the time of each step on stderr' },
  json: { type: 'boolean', default: false, describe: 'print one JSON document' },
} as const;

const PROMPT = ['prompt', 'prompt-file', 'ids', 'chat', 'system', 'template-option'];

/** @param version of the package */
export function parser(version: string) {
  return (
    commandLine('cflow-run', version, 'cflow-run model.cflow --prompt "Once upon a time"')
      .usage('$0 <file> --prompt TEXT | --ids 1,2,3 | --chat | --perplexity FILE')
      // Groups in the order in which help prints them.
      .group([], 'Positionals:')
      .group(PROMPT, 'Prompt:')
      .group([], 'Options:')
      // `more` is what a command line has beyond the model: see misplaced.ts.
      .command('$0 <file> [more..]', 'Run a .cflow or .vflow model', (y) =>
        y
          .positional('file', { type: 'string', demandOption: true, describe: 'the model, .cflow or .vflow' })
          .positional('more', { type: 'string', array: true })
          .hide('more'),
      )
      .options(OPTIONS)
  );
}

/** The parsed command line. */
export type Arguments = Awaited<ReturnType<ReturnType<typeof parser>['parse']>> & {
  file: string;
  more?: string[];
};
