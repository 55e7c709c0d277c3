/** `cflow-bench capped`. */
import { parseBytes, threadBudget } from '@cflow/runtime-native';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { warnIfBusy } from '../harness/busy.js';
import { type Builder, count, print } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { benchCapped } from './capped-bench.js';
import { cappedMeasured } from './capped-measured.js';

function options(y: Builder) {
  return y
    .positional('model', { type: 'string', demandOption: true, describe: '.cflow or .vflow' })
    .option('gguf', { type: 'string', describe: 'the same weights [default: exported, and removed again]' })
    .option('memory', { type: 'string', describe: 'for everything, as 2GiB [default: half of the file]' })
    .option('runs', { type: 'number', default: 3, describe: 'of each, in turns, each a fresh process' })
    .option('tokens', { type: 'number', default: 16, describe: 'timed' })
    .option('warmup', { type: 'number', default: 16, describe: 'tokens before' })
    .option('threads', { type: 'number', describe: 'of both [default: CPUs allowed]' });
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
    threads: count('threads', args.threads ?? (await threadBudget()).threads, 1024),
    onStep: line.step,
  }).finally(line.stop);
  const measured = cappedMeasured(report);
  await save('capped', args, () => measured);
  const compared = /^decode, times|^same token/;
  await print(args, measured, ({ metrics, tables }) =>
    measuredText({ metrics: metrics.filter(({ name }) => compared.test(name)), tables }),
  );
}
