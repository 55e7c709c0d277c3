/** `cflow-bench prefill`: the decode bench with prompts of several lengths. */
import { warnIfBusy } from '../harness/busy.js';
import { type Builder, count, print } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import { type Measured, type Metric, metric } from '../harness/result.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { benchDecode, type DecodeReport } from './decode-bench.js';

export function prefillOptions(y: Builder) {
  return y
    .positional('model', { type: 'string', demandOption: true, describe: '.cflow or .vflow' })
    .option('gguf', { type: 'string', describe: 'the same weights for llama.cpp (see synth --format gguf)' })
    .option('lengths', { type: 'string', default: '32,128,512', describe: 'tokens of the prompts' })
    .option('threads', { type: 'number', default: 2, describe: 'that compute' })
    .option('warmup', { type: 'number', default: 128, describe: 'tokens before anything is timed' })
    .option('runs', { type: 'number', default: 5, describe: 'of each, in turns, each a fresh process' });
}

type PrefillArgs = Awaited<ReturnType<ReturnType<typeof prefillOptions>['parse']>>;

export async function runPrefill(args: PrefillArgs & { json?: unknown }): Promise<void> {
  await warnIfBusy();
  const line = progress(args.json === true);
  const reports: DecodeReport[] = [];
  try {
    for (const text of args.lengths.split(',')) {
      const prefill = count('lengths', Number(text), 100_000);
      reports.push(
        await benchDecode({
          file: args.model,
          gguf: args.gguf,
          threads: count('threads', args.threads, 1024),
          warmup: count('warmup', args.warmup, 100_000),
          runs: count('runs', args.runs, 1_000),
          prefill,
          tokens: 1,
          context: 0,
          checked: 0,
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
