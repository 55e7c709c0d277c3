/** `cflow-bench capped`. */
import { parseBytes } from '@cflow/runtime-native';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { warnIfBusy } from '../harness/busy.js';
import { type Builder, count, print, SHARED, threadsOf } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { benchCapped } from './capped-bench.js';
import { cappedMeasured } from './capped-measured.js';

const { gguf, memory, runs, threads, tokens, warmup } = SHARED;

function options(y: Builder) {
  return y
    .positional('model', SHARED.model)
    .option('save', SHARED.save)
    .options({ threads, runs, tokens: { ...tokens, default: 16 }, warmup: { ...warmup, default: 16 } })
    .option('gguf', { ...gguf, describe: `${gguf.describe} [default: exported, and removed again]` })
    .option('memory', { ...memory, describe: `${memory.describe} [default: half of the file]` });
}

type Options = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

export const command: CommandModule<object, Options> = {
  command: 'capped <model>',
  describe: 'ours and llama.cpp on the same weights under the same memory cap',
  builder: options,
  handler: run,
};

async function run(args: ArgumentsCamelCase<Options>): Promise<void> {
  await warnIfBusy();
  const line = progress(args.json === true);
  const report = await benchCapped({
    file: args.model,
    gguf: args.gguf,
    memory: args.memory === undefined ? undefined : parseBytes(args.memory, '--memory'),
    runs: count('runs', args.runs, 1000),
    tokens: count('tokens', args.tokens, 100_000),
    warmup: count('warmup', args.warmup, 100_000, 0),
    threads: await threadsOf(args.threads),
    onStep: line.step,
  }).finally(line.stop);
  const measured = cappedMeasured(report);
  await save('capped', args, () => measured);
  const compared = /^decode, times|^same token/;
  await print(args, measured, ({ metrics, tables }) =>
    measuredText({ metrics: metrics.filter(({ name }) => compared.test(name)), tables }),
  );
}
