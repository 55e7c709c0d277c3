import { CflowError, DTYPE_NAMES, exitCodeHelp, FORMAT_VERSIONS, PRESETS } from '@cflow/format';
import { runCommand, usageError, writeOutput } from '@cflow/format/node';
import { threadBudget } from '@cflow/runtime-native';
import cliProgress from 'cli-progress';
import yargs from 'yargs';
import { CONVERTER_VERSION, convert } from './convert.js';
import { type DryRunReport, dryRun } from './dry-run.js';
import { CONVERT_DEFAULTS, type ConvertRequest, type ConvertResult, MOST_THREADS } from './options.js';
import { retryNotice } from './retry-notice.js';

/** For suggestions where one is misspelt. */
const OPTION_NAMES = [
  ...['model', 'dtype', 'scale-search', 'allow-nonfinite', 'dry-run', 'json', 'verify', 'threads'],
  ...['format-version', 'resume', 'cache', 'overwrite', 'help', 'version'],
];

function parser(argv: string[], defaultThreads: number) {
  return yargs(argv)
    .scriptName('cflow-convert')
    .parserConfiguration({ 'duplicate-arguments-array': false })
    .usage(
      [
        '$0 <source> <output.cflow|.vflow>',
        '',
        'Example: $0 hf:Qwen/Qwen3-0.6B qwen3.cflow --dtype q4_0',
        '',
        'Converts a checkpoint directory, one of the Hugging Face Hub (hf:org/name) or a GGUF (.gguf); lays a .cflow or .vflow out anew, or writes it as GGUF, .safetensors or a checkpoint directory.',
        'Guides: docs/guides/hub.md and docs/guides/gguf.md.',
      ].join('\n'),
    )
    .command('$0 [source] [output]', false, (y) =>
      y
        .positional('source', {
          type: 'string',
          describe:
            'checkpoint directory, hf:org/name[@revision] (Hugging Face Hub), GGUF (.gguf), .cflow or .vflow; may be absent with --model and --dry-run',
        })
        .positional('output', {
          type: 'string',
          describe:
            '.cflow or .vflow; from a .cflow or .vflow also .safetensors, .gguf, or a checkpoint directory (a name without extension, or with a slash at its end)',
        }),
    )
    .option('model', {
      type: 'string',
      choices: ['auto', ...Object.keys(PRESETS)],
      describe: `auto, or the preset that the checkpoint must match [default: ${CONVERT_DEFAULTS.model}]`,
    })
    .option('dtype', {
      choices: DTYPE_NAMES,
      describe: `tile dtype [default: ${CONVERT_DEFAULTS.dtype}; of a .gguf: what most of its weights have]`,
    })
    .option('format-version', {
      type: 'number',
      choices: FORMAT_VERSIONS,
      describe:
        'version of the format [default: 5 where it can hold the model, else 6; of a .cflow or .vflow: its own]',
    })
    .option('scale-search', {
      type: 'boolean',
      describe: 'q4_0: search each scale [default: true]; --no-scale-search is max|w|/7',
    })
    .option('allow-nonfinite', {
      choices: ['zero'] as const,
      describe: 'store NaN and Inf weights as 0 instead of stopping',
    })
    .option('strict', {
      type: 'boolean',
      describe: 'every note (ignored, derived, dropped, changed) is an error [default: false]',
    })
    .option('max-header', {
      type: 'number',
      describe: 'MB that the header of a safetensors file may have [default: 100]',
    })
    .option('dry-run', {
      type: 'boolean',
      default: false,
      describe: 'say what would be written; write nothing',
    })
    .option('json', { type: 'boolean', default: false, describe: 'the result as one JSON document' })
    .option('verify', {
      type: 'boolean',
      default: false,
      describe: 'read the new file back and check every byte before it gets its name',
    })
    .option('threads', { type: 'number', default: defaultThreads, describe: 'quantizing threads' })
    .option('resume', {
      type: 'boolean',
      describe: 'go on with what an interrupted conversion to this output left [default: false]',
    })
    .option('cache', {
      type: 'boolean',
      describe: 'hf: keep the checkpoint in the Hub cache [default: true]; --no-cache passes weights through',
    })
    .option('overwrite', { type: 'boolean', default: false, describe: 'replace an existing output' })
    .epilogue(exitCodeHelp())
    .strict()
    .version(CONVERTER_VERSION)
    .alias({ h: 'help', V: 'version' })
    .wrap(100)
    .exitProcess(false)
    .fail((message, error) => {
      throw error ?? usageError('cflow-convert', message, OPTION_NAMES);
    });
}

/** Runs the command; returns its exit code. */
export function main(argv: string[]): Promise<number> {
  return runCommand('cflow-convert', () => run(argv));
}

async function run(argv: string[]): Promise<number> {
  const budget = await threadBudget();
  let help = '';
  const args = await parser(argv, budget.threads).parseAsync(argv, {}, (_error, _argv, output) => {
    help = output;
  });
  if (help) return print(help);
  const { source, output } = args as { source?: string; output?: string };
  if (!Number.isInteger(args.threads) || args.threads < 1 || args.threads > MOST_THREADS) {
    throw new CflowError('USAGE', `--threads is ${args.threads}, expected 1 to ${MOST_THREADS}`);
  }
  // Absent stays absent: the library knows the defaults, and refuses what a source cannot honour.
  const common = {
    ...(args.model === undefined ? {} : { model: args.model }),
    ...(args.dtype === undefined ? {} : { dtype: args.dtype }),
    ...(args.formatVersion === undefined ? {} : { formatVersion: args.formatVersion }),
    ...(args.scaleSearch === undefined ? {} : { scaleSearch: args.scaleSearch }),
    ...(args.allowNonfinite === undefined ? {} : { zeroNonfinite: true }),
    ...(args.resume === undefined ? {} : { resume: args.resume }),
    ...(args.cache === undefined ? {} : { cache: args.cache }),
    ...(args.strict === undefined ? {} : { strict: args.strict }),
    ...(args.maxHeader === undefined ? {} : { maxHeaderBytes: Math.round(args.maxHeader * 1e6) }),
    overwrite: args.overwrite,
    verify: args.verify,
    threads: args.threads,
  };
  if (args.dryRun) {
    const named = { ...(source !== undefined && { source }), ...(output !== undefined && { output }) };
    const retries = retryNotice(args.json);
    const report = await dryRun({ ...common, ...named, onRetry: retries.show }).finally(retries.stop);
    return print(args.json ? JSON.stringify(report) : describeDryRun(report));
  }
  if (!source || !output) {
    throw new CflowError('USAGE', 'a source and an output are needed', {
      remedy: 'see cflow-convert --help',
    });
  }
  const result = await interruptible({ ...common, source, output }, args.json);
  const from = args.threads === budget.threads ? ` (${budget.reason})` : '';
  return print(args.json ? JSON.stringify(result) : describe(result, from));
}

async function print(text: string): Promise<number> {
  await writeOutput(`${text}\n`);
  return 0;
}

/** What ends a conversion; SIGHUP: its terminal was closed. */
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

async function interruptible(options: ConvertRequest, json: boolean): Promise<ConvertResult> {
  const abort = new AbortController();
  const onSignal = () => abort.abort();
  for (const signal of SIGNALS) process.on(signal, onSignal);
  const retries = retryNotice(json);
  const downloads = progressBar(json, 'fetched');
  const bar = progressBar(json, 'written');
  try {
    const onProgress = (done: number, total: number) => {
      downloads.stop();
      bar.update(done, total);
    };
    const { update: onDownload } = downloads;
    const all = { ...options, signal: abort.signal, onProgress, onDownload, onRetry: retries.show };
    return await convert(all);
  } finally {
    downloads.stop();
    bar.stop();
    retries.stop();
    for (const signal of SIGNALS) process.off(signal, onSignal);
  }
}

/** A bar with rate and time left on a terminal; nothing where output is collected. */
function progressBar(json: boolean, what: string) {
  if (json || !process.stderr.isTTY) return { update: () => undefined, stop: () => undefined };
  let started = 0;
  const bar = new cliProgress.SingleBar({
    format: `{bar} {percentage}% | {done} of {size} MB ${what} | {rate} MB/s | {eta_formatted} left`,
    stream: process.stderr,
    hideCursor: true,
  });
  let running = false;
  return {
    update: (done: number, total: number) => {
      if (!running) {
        bar.start(total, 0, { done: 0, size: mega(total), rate: 0 });
        started = performance.now();
      }
      running = true;
      bar.update(done, {
        done: mega(done),
        size: mega(total),
        rate: mega((done * 1000) / (performance.now() - started)),
      });
    },
    stop: () => {
      if (running) bar.stop();
      running = false;
    },
  };
}

function mega(bytes: number): string {
  return (bytes / 1e6).toFixed(1);
}

const UNITS = ['bytes', 'kB', 'MB', 'GB', 'TB'];

/** Decimal units, three digits or more: `17.40 GB`, `932.93 kB`. */
function size(bytes: number): string {
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(bytes, 1)) / 3));
  return `${(bytes / 1000 ** power).toFixed(power ? 2 : 0)} ${UNITS[power]}`;
}

function describe(r: ConvertResult, from: string): string {
  const speed = mega(r.fileBytes / Math.max(r.seconds, 1e-9));
  return [
    `${r.output}: ${r.model}, ${r.parameters.toLocaleString('en')} parameters, ${r.dtype}, ${size(r.fileBytes)}`,
    `${r.seconds.toFixed(2)} s, ${speed} MB/s written, ${r.threads} threads${from}${r.verified ? ', verified' : ''}`,
    ...r.notes.map((note) => `note: ${note}`),
  ].join('\n');
}

function describeDryRun(report: DryRunReport): string {
  const rows = Object.entries(report.bytesByKind).map(
    ([kind, bytes]) => `  ${kind.padEnd(12)} ${size(bytes).padStart(12)}`,
  );
  return [
    `${report.model}: ${report.parameters.toLocaleString('en')} parameters as ${report.dtype} .${report.container}: ${size(report.fileBytes)}`,
    ...rows,
    ...report.notes.map((note) => `note: ${note}`),
    report.weightsPresent ? 'nothing was written' : 'no weights were looked at; nothing was written',
  ].join('\n');
}
