import { cpus } from 'node:os';
import {
  asCflowError,
  CflowError,
  type Container,
  DTYPE_NAMES,
  type Dtype,
  errorLine,
  exitCodeHelp,
} from '@cflow/format';
import yargs from 'yargs';
import { benchConvert, type ConvertReport } from './convert-bench.js';
import { GEOMETRIES } from './geometry.js';
import { type SynthResult, synthesize } from './synth.js';
import { STORAGES, type StorageName } from './weights.js';

const CONTAINERS: readonly Container[] = ['cflow', 'vflow'];

/** Runs the command; returns its exit code. */
export async function main(argv: string[]): Promise<number> {
  try {
    await parser(argv).parse();
    return 0;
  } catch (error) {
    const known = asCflowError(error);
    process.stderr.write(errorLine('cflow-bench', known));
    return known.exitCode;
  }
}

function parser(argv: string[]) {
  return yargs(argv)
    .scriptName('cflow-bench')
    .command('synth <directory>', 'write a synthetic checkpoint of Gaussian weights', synthOptions, runSynth)
    .command(
      'convert <source>',
      'convert a checkpoint, in turns, and compare threads',
      convertOptions,
      runConvert,
    )
    .option('json', { type: 'boolean', default: false, describe: 'the result as one JSON document' })
    .demandCommand(1, 'a command is needed')
    .epilogue(exitCodeHelp())
    .strict()
    .version('0.1.0')
    .wrap(100)
    .exitProcess(false)
    .fail((message, error) => {
      throw error ?? new CflowError('USAGE', message, { remedy: 'see cflow-bench --help' });
    });
}

type Builder = ReturnType<typeof yargs>;

function synthOptions(y: Builder) {
  return y
    .positional('directory', { type: 'string', demandOption: true, describe: 'must not exist' })
    .option('geometry', {
      type: 'string',
      default: 'llama-tiny',
      choices: GEOMETRIES,
      describe: 'whose shapes',
    })
    .option('bytes', { type: 'number', describe: 'about so many bytes of weights, by the number of layers' })
    .option('shards', { type: 'number', default: 1, describe: 'files' })
    .option('dtype', {
      choices: Object.keys(STORAGES) as StorageName[],
      default: 'bf16' as StorageName,
      describe: 'of the weights',
    })
    .option('seed', { type: 'number', default: 1, describe: 'same seed, same bytes' });
}

async function runSynth(args: Awaited<ReturnType<ReturnType<typeof synthOptions>['parse']>>): Promise<void> {
  const { directory, geometry, bytes, dtype } = args;
  const result = await synthesize({
    directory,
    geometry,
    ...(bytes === undefined ? {} : { bytes: count('bytes', bytes, Number.MAX_SAFE_INTEGER) }),
    shards: count('shards', args.shards, 99_999),
    dtype,
    seed: args.seed,
  });
  print(args, result, describeSynth);
}

function convertOptions(y: Builder) {
  return y
    .positional('source', { type: 'string', demandOption: true, describe: 'checkpoint directory' })
    .option('dtype', { choices: DTYPE_NAMES, default: 'q4_0' as Dtype, describe: 'tile dtype' })
    .option('container', { choices: CONTAINERS, default: 'cflow' as Container, describe: 'of the output' })
    .option('scale-search', { type: 'boolean', default: true, describe: 'as cflow-convert has it' })
    .option('threads', { type: 'string', default: '1,2', describe: 'numbers of threads to compare' })
    .option('runs', { type: 'number', default: 3, describe: 'of each' })
    .option('directory', { type: 'string', describe: 'for the outputs, which are removed again' });
}

async function runConvert(
  args: Awaited<ReturnType<ReturnType<typeof convertOptions>['parse']>>,
): Promise<void> {
  const { source, dtype, container, scaleSearch, directory } = args;
  const report = await benchConvert({
    source,
    dtype,
    container,
    scaleSearch,
    threads: args.threads.split(',').map((text) => count('threads', Number(text), 256)),
    runs: count('runs', args.runs, 1_000),
    ...(directory === undefined ? {} : { directory }),
  });
  print(args, { ...report, cpu: cpus()[0]?.model ?? 'unknown', node: process.version }, describeConvert);
}

function count(field: string, value: number, most: number): number {
  if (Number.isInteger(value) && value >= 1 && value <= most) return value;
  throw new CflowError('USAGE', `--${field} is ${value}, expected 1 to ${most}`, { field, value });
}

function print<T>(args: Record<string, unknown>, result: T, describe: (result: T) => string): void {
  process.stdout.write(`${args.json ? JSON.stringify(result) : describe(result)}\n`);
}

const mega = (bytes: number) => (bytes / 1e6).toFixed(1);

function describeSynth({ directory, parameters, layers, shards, bytes, seconds }: SynthResult): string {
  return `${directory}: ${parameters.toLocaleString('en')} parameters in ${layers} layers, ${mega(bytes)} MB in ${shards} files, ${mega(bytes / seconds)} MB/s`;
}

function describeConvert(report: ConvertReport & { cpu: string; node: string }): string {
  const head = ['threads', 'median s', 'min s', 'max s', 'MB/s', 'max RSS MiB'];
  const rows = report.rows.map((r) => [
    String(r.threads),
    ...[r.medianSeconds, r.minSeconds, r.maxSeconds].map((s) => s.toFixed(2)),
    r.megabytesPerSecond.toFixed(1),
    (r.maxRssBytes / 2 ** 20).toFixed(0),
  ]);
  return [
    `${mega(report.inputBytes)} MB of weights, ${report.runs} runs each, in turns; ${report.cpu}, Node ${report.node}`,
    ...[head, ...rows].map((row) => row.map((cell) => cell.padStart(12)).join('')),
    `sha256 of every output: ${report.sha256}`,
  ].join('\n');
}
