import { readFile } from 'node:fs/promises';
import { asCflowError, CflowError, errorLine, exitCodeHelp } from '@cflow/format';
import yargs from 'yargs';
import { ENGINES, type EngineName, Model } from './model.js';
import { perplexity } from './perplexity.js';
import { SAMPLER_DEFAULTS, Sampler } from './sampler.js';
import { DEFAULT_MAX_TOKENS, type FinishReason, type GenerateOptions } from './session.js';

const OPTIONS = {
  prompt: { type: 'string', requiresArg: true, describe: 'text to continue' },
  ids: { type: 'string', requiresArg: true, describe: 'token ids to continue, separated by commas' },
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
    default: 'reference' as EngineName,
    describe: 'what executes the plan',
  },
  json: { type: 'boolean', default: false, describe: 'print one JSON document instead of text' },
} as const;

function commandLine(argv: string[]) {
  return yargs(argv)
    .scriptName('cflow-run')
    .usage('$0 <file> --prompt TEXT | --ids 1,2,3 | --perplexity FILE')
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
      throw error instanceof CflowError
        ? error
        : new CflowError('USAGE', message ?? error?.message, { remedy: 'see cflow-run --help' });
    })
    .wrap(100);
}

type Arguments = Awaited<ReturnType<ReturnType<typeof commandLine>['parse']>> & { file: string };

/** Runs cflow-run; resolves to the exit code and never throws. */
export async function main(argv: string[]): Promise<number> {
  const abort = new AbortController();
  const onSignal = () => abort.abort();
  const onOutputError = (error: NodeJS.ErrnoException) => {
    // A reader that has seen enough (`| head`) is no failure.
    if (error.code === 'EPIPE') process.exit(0);
    throw error;
  };
  process.on('SIGINT', onSignal);
  process.on('SIGTERM', onSignal);
  process.stdout.on('error', onOutputError);
  try {
    return await run(argv, abort.signal);
  } catch (error) {
    return report(error);
  } finally {
    process.off('SIGINT', onSignal);
    process.off('SIGTERM', onSignal);
    process.stdout.off('error', onOutputError);
  }
}

async function run(argv: string[], signal: AbortSignal): Promise<number> {
  let help = '';
  const parsed = await commandLine(argv).parseAsync(argv, {}, (_error, _argv, output) => {
    help = output;
  });
  if (help) {
    process.stdout.write(`${help}\n`);
    return 0;
  }
  const args = parsed as Arguments;
  checkArguments(args);
  const model = await Model.open(args.file, { engine: args.engine });
  try {
    await (args.perplexity === undefined ? generate(model, args, signal) : score(model, args, signal));
    return 0;
  } finally {
    await model.close();
  }
}

function checkArguments(args: Arguments): void {
  const tasks = ['prompt', 'ids', 'perplexity'].filter((name) => args[name] !== undefined);
  if (tasks.length !== 1) {
    throw new CflowError('USAGE', 'give exactly one of --prompt, --ids and --perplexity');
  }
  const counts = { 'max-tokens': args.maxTokens, stories: args.stories, tokens: args.tokens };
  for (const [name, value] of Object.entries(counts)) {
    if (value === undefined || (Number.isInteger(value) && value > 0)) continue;
    throw new CflowError('USAGE', `${value} is not a whole number above 0`, { field: `--${name}`, value });
  }
  for (const name of ['temperature', 'topK', 'topP', 'seed'] as const) {
    if (Number.isNaN(args[name])) throw new CflowError('USAGE', 'not a number', { field: name });
  }
}

async function generate(model: Model, args: Arguments, signal: AbortSignal): Promise<void> {
  const promptIds = args.ids === undefined ? encodePrompt(model, args.prompt!) : parseIds(args.ids);
  const { maxTokens, temperature, topK, topP, ignoreEos } = args;
  const seed = args.seed ?? new Sampler().seed;
  const options: GenerateOptions = {
    ids: promptIds,
    maxTokens,
    temperature,
    topK,
    topP,
    seed,
    ignoreEos,
    signal,
  };
  const session = model.createSession();
  const ids = [...promptIds];
  let finish: FinishReason | undefined;
  for await (const token of session.generate(options)) {
    ids.push(token.id);
    finish = token.finish;
    if (!args.json) await write(model.tokenizer ? token.text : `${token.id}${token.finish ? '' : ','}`);
  }
  if (!args.json) return write('\n');
  const text = model.tokenizer?.decode(ids) ?? '';
  const vocabulary = { model: model.config.vocabSize, tokenizer: model.tokenizer?.vocabSize };
  const stats = session.stats();
  await write(`${JSON.stringify({ promptIds, ids, text, finish, seed, vocabulary, stats })}\n`);
}

async function score(model: Model, args: Arguments, signal: AbortSignal): Promise<void> {
  const path = args.perplexity!;
  const text = await readFile(path, 'utf8').catch((cause: NodeJS.ErrnoException) => {
    throw new CflowError('NOT_READABLE', `cannot be read: ${cause.code}`, { file: path, cause });
  });
  const result = await perplexity(model, text, { stories: args.stories, tokens: args.tokens, signal });
  if (args.json) return write(`${JSON.stringify(result)}\n`);
  const { nats, perplexity: e, predictedTokens, stories } = result;
  await write(
    `${nats.toFixed(4)} nats/token, perplexity ${e.toFixed(3)}, ${predictedTokens} tokens, ${stories} texts\n`,
  );
}

function encodePrompt(model: Model, prompt: string): number[] {
  if (!model.tokenizer) throw new CflowError('USAGE', 'the file has no tokenizer', { remedy: 'use --ids' });
  return model.tokenizer.encode(prompt);
}

function parseIds(list: string): number[] {
  if (!/^\s*\d+(\s*,\s*\d+)*\s*$/.test(list)) {
    throw new CflowError('USAGE', `${JSON.stringify(list)} is not a list like 1,2,3`, { field: '--ids' });
  }
  return list.split(',').map(Number);
}

/** Writes and waits until the text is taken, so that output never runs ahead of a slow reader. */
function write(text: string): Promise<void> {
  return new Promise((resolve) => {
    process.stdout.write(text, () => resolve());
  });
}

function report(error: unknown): number {
  const known = asCflowError(error);
  process.stderr.write(errorLine('cflow-run', known));
  return known.exitCode;
}
