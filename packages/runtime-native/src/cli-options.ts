/** The options of cflow-run and their checks. */
import { CflowError, exitCodeHelp } from '@cflow/format';
import { usageError } from '@cflow/format/node';
import yargs from 'yargs';
import { ENGINES, type EngineName } from './model.js';
import { SAMPLER_DEFAULTS } from './sampler.js';
import { DEFAULT_MAX_TOKENS } from './session.js';

const OPTIONS = {
  prompt: { type: 'string', requiresArg: true, describe: 'text to continue' },
  ids: { type: 'string', requiresArg: true, describe: 'token ids to continue, separated by commas' },
  chat: {
    type: 'boolean',
    default: false,
    describe: 'converse by the chat template: --prompt as one message, else every line of the input',
  },
  system: { type: 'string', requiresArg: true, describe: 'with --chat: the message of the system' },
  'max-tokens': {
    type: 'number',
    requiresArg: true,
    describe: `tokens to generate [default: ${DEFAULT_MAX_TOKENS}]`,
  },
  temperature: {
    type: 'number',
    requiresArg: true,
    default: SAMPLER_DEFAULTS.temperature,
    describe: '0 = greedy',
  },
  'top-k': { type: 'number', requiresArg: true, default: SAMPLER_DEFAULTS.topK, describe: '0 = all' },
  'top-p': { type: 'number', requiresArg: true, default: SAMPLER_DEFAULTS.topP, describe: '1 = all' },
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
  threads: { type: 'number', requiresArg: true, describe: 'threads that compute [default: CPUs allowed]' },
  weights: {
    choices: ['auto', 'mapped', 'resident'] as const,
    describe: 'in the page cache, or read into memory first [default: auto, by the memory available]',
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
    .version('0.1.0')
    .exitProcess(false)
    .fail((message, error) => {
      throw error instanceof CflowError ? error : usageError('cflow-run', message ?? error?.message);
    })
    .wrap(100);
}

/** The command line, parsed. */
export type Arguments = Awaited<ReturnType<ReturnType<typeof commandLine>['parse']>> & { file: string };

/** Options that the reference engine would ignore. */
const NATIVE_OPTIONS = ['threads', 'weights', 'arithmetic', 'cache', 'profile'] as const;

/** @throws CflowError USAGE for what the parser lets through */
export function checkArguments(args: Arguments): void {
  const tasks = ['prompt', 'ids', 'perplexity'].filter((name) => args[name] !== undefined);
  // A conversation takes its first message from --prompt, or everything from the input.
  const fits = args.chat ? tasks.every((name) => name === 'prompt') : tasks.length === 1;
  if (!fits) {
    throw new CflowError('USAGE', 'give exactly one of --prompt, --ids and --perplexity, or --chat', {
      ...(args.chat && { remedy: '--chat goes with --prompt only' }),
    });
  }
  if (args.system !== undefined && !args.chat) {
    throw new CflowError('USAGE', 'belongs to --chat', { field: '--system' });
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
  for (const name of ['temperature', 'topK', 'topP', 'seed'] as const) {
    if (Number.isNaN(args[name])) throw new CflowError('USAGE', 'not a number', { field: name });
  }
}
