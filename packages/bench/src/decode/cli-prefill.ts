/** `cflow-bench prefill`: the decode bench with prompts of several lengths. */
import { warnIfBusy } from '../harness/busy.js';
import { type Builder, count, print, SHARED, threadsOf } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import { type Measured, type Metric, metric } from '../harness/result.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { benchDecode, type DecodeReport } from './decode-bench.js';

const LENGTHS = [32, 128, 512];
const { gguf, threads, warmup, runs } = SHARED;

export function prefillOptions(y: Builder) {
  return y
    .positional('model', SHARED.model)
    .option('save', SHARED.save)
    .options({ gguf, threads, warmup, runs: { ...runs, default: 5 } })
    .option('lengths', { type: 'number', array: true, default: LENGTHS, describe: 'tokens of the prompts' });
}

type PrefillArgs = Awaited<ReturnType<ReturnType<typeof prefillOptions>['parse']>>;

export async function runPrefill(args: PrefillArgs & { json?: unknown }): Promise<void> {
  await warnIfBusy();
  const line = progress(args.json === true);
  const reports: DecodeReport[] = [];
  try {
    for (const length of args.lengths) {
      const prefill = count('lengths', length, 100_000);
      reports.push(
        await benchDecode({
          file: args.model,
          gguf: args.gguf,
          threads: await threadsOf(args.threads),
          warmup: count('warmup', args.warmup, 100_000),
          runs: count('runs', args.runs, 1_000),
          prefill,
          tokens: 1,
          context: 0,
          variants: [{ name: 'cflow', options: {} }],
          onRun: (subject, round) => line.step(`prompt of ${prefill}, round ${round + 1}: ${subject}`),
        }),
      );
    }
  } finally {
    line.stop();
  }
  const measured = prefillMeasured(reports);
  await save('prefill', args, () => measured);
  await print(args, measured, measuredText);
}

export function prefillMeasured(reports: readonly DecodeReport[]): Measured {
  const metrics = reports.flatMap(({ prefill, rows }) =>
    rows.map(({ subject, runs }): Metric => {
      const speeds = runs.map(({ prefillSeconds }) => prefill / prefillSeconds);
      return metric(`${subject}: prompt of ${prefill}`, 'tok/s', 'higher', speeds);
    }),
  );
  return { metrics };
}
