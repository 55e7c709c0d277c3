/** What cflow-convert does: a conversion, or a dry run. */

import { CflowError } from '@cflow/format';
import type { ThreadBudget } from '@cflow/runtime-native';
import { fileText, rateText } from '#cli-kit/bytes.js';
import { writeOutput } from '#cli-kit/output.js';
import { progress } from '#cli-kit/progress.js';
import { interruptible } from '#cli-kit/signals.js';
import { count, plural } from '#cli-kit/text.js';
import { convert } from '../convert.js';
import { type DryRunReport, dryRun } from '../dry-run.js';
import type { ConvertRequest, ConvertResult } from '../options.js';
import { retryNotice } from '../retry-notice.js';
import { setInFile } from '../set.js';
import type { Arguments, GivenOptions } from './options.js';

/** Prints what a conversion would write. */
export async function runDry(args: Arguments): Promise<number> {
  const { source, output } = args;
  const named = { ...(source !== undefined && { source }), ...(output !== undefined && { output }) };
  const retries = retryNotice(args.json);
  const request = { ...requestOf(args), ...named, onRetry: retries.show };
  const report = await dryRun(request).finally(retries.stop);
  return print(args.json ? JSON.stringify(report) : describeDryRun(report));
}

/** Changes settings of a file in place. @param given names of all options on the command line */
export async function runSet(
  { source, output, json, dryRun }: Arguments,
  { assignments, given }: GivenOptions,
): Promise<number> {
  if (!source || output) {
    throw new CflowError('USAGE', '--set changes one file in place and writes no other', {
      remedy: 'cflow-convert FILE --set KEY=VALUE',
    });
  }
  const idle = given.find((name) => !BESIDE_SET.includes(name));
  if (idle !== undefined) {
    throw new CflowError('USAGE', `--${idle} does not apply beside --set, which changes settings alone`, {
      file: source,
      field: idle,
      remedy: `options beside --set are ${BESIDE_SET.slice(1)
        .map((name) => `--${name}`)
        .join(', ')}`,
    });
  }
  await setInFile(source, assignments, { dryRun });
  if (json) return print(JSON.stringify({ file: source, set: assignments, written: !dryRun }));
  const lines = assignments.map((each) => `${source}: ${dryRun ? 'would set' : 'set'} ${each}`);
  return print([...lines, ...(dryRun ? ['nothing was written'] : [])].join('\n'));
}

const BESIDE_SET: readonly string[] = ['set', 'dry-run', 'json'];

/** Converts, and prints what was written. */
export async function runConversion(args: Arguments, budget: ThreadBudget): Promise<number> {
  const { source, output } = args;
  if (!source || !output) {
    throw new CflowError('USAGE', 'a source and an output are needed', {
      remedy: 'see cflow-convert --help',
    });
  }
  const result = await withProgress({ ...requestOf(args), source, output }, args.json);
  const from = args.threads === budget.threads ? ` (${budget.reason})` : '';
  return print(args.json ? JSON.stringify(result) : describe(result, from));
}

/** Absent stays absent: the library knows the defaults, and rejects what a source cannot honour. */
function requestOf(args: Arguments) {
  return {
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
}

async function print(text: string): Promise<number> {
  await writeOutput(`${text}\n`);
  return 0;
}

/** Converts with progress on a terminal, until a signal arrives. */
function withProgress(request: ConvertRequest, json: boolean): Promise<ConvertResult> {
  const retries = retryNotice(json);
  const line = progress(json);
  const onDownload = line.bytes('downloaded');
  const onProgress = line.bytes('written');
  return interruptible((signal) =>
    convert({ ...request, signal, onProgress, onDownload, onRetry: retries.show }),
  ).finally(() => {
    line.stop();
    retries.stop();
  });
}

function describe(r: ConvertResult, from: string): string {
  const speed = rateText(r.fileBytes / Math.max(r.seconds, 1e-9));
  return [
    `${r.output}: ${r.model}, ${count(r.parameters)} parameters, ${r.dtype}, ${fileText(r.fileBytes)}`,
    `${r.seconds.toFixed(2)} s, ${speed} written, ${plural(r.threads, 'thread')}${from}${r.verified ? ', verified' : ''}`,
    ...r.notes.map((note) => `note: ${note}`),
  ].join('\n');
}

function describeDryRun(report: DryRunReport): string {
  const rows = Object.entries(report.bytesByKind).map(
    ([kind, bytes]) => `  ${kind.padEnd(12)} ${fileText(bytes).padStart(12)}`,
  );
  return [
    `${report.model}: ${count(report.parameters)} parameters as ${report.dtype} .${report.container}: ${fileText(report.fileBytes)}`,
    ...rows,
    ...report.notes.map((note) => `note: ${note}`),
    report.weightsPresent ? 'nothing was written' : 'the weights were not read; nothing was written',
  ].join('\n');
}
