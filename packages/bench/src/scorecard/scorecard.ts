/** `cflow-bench scorecard`: judges every claim by measurements on this machine, or by result files. */

import { existsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { convert } from '@cflow/convert';
import { asCflowError, CflowError } from '@cflow/format';
import { threadBudget } from '@cflow/runtime-native';
import { nativeMachine } from '@cflow/runtime-native/internal/native/machine.js';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { progress } from '#cli-kit/progress.js';
import { benchDecode, decodeMeasured } from '../experiments/decode/bench.js';
import { parseVariants } from '../experiments/decode/variants.js';
import { experiments } from '../experiments/index.js';
import { type QuickContext, Run, resultOf, save, warnIfBusy } from '../runner/experiment.js';
import { makeFolder } from '../runner/files.js';
import { type Builder, print, SHARED } from '../runner/options.js';
import { interruption, temporaryFolder } from '../runner/resources.js';
import { type Measured, writeResult } from '../runner/result.js';
import { type Evidence, type EvidenceOf, SOURCE_NAMES, type SourceName } from './judging.js';
import { committedResults, score, scoreMeasured, scoreTable, scoreText } from './score.js';

const at = (path: string) => fileURLToPath(new URL(`../../${path}`, import.meta.url));
const RESULTS = at('results');
const MODEL = at('../../models/stories-arch2_4');

function options(y: Builder) {
  return y
    .option('quick', { type: 'boolean', default: false, describe: 'a few minutes, only the bundled model' })
    .option('model', { type: 'string', describe: 'checkpoint or model file [default: the bundled one]' })
    .option('only', {
      type: 'string',
      array: true,
      choices: SOURCE_NAMES,
      describe: 'measure these; take the others from result files [default: all]',
    })
    .option('results', {
      type: 'string',
      describe: 'result files of the sources not measured [default: the committed ones]',
    })
    .option('output', { type: 'string', describe: 'directory for a result file of each source' })
    .option('save', SHARED.save);
}

type ScorecardArgs = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

export const scorecard: CommandModule<object, ScorecardArgs> = {
  command: 'scorecard',
  describe: 'judge every claim of the report on this machine',
  builder: options,
  handler: run,
};

async function run(args: ArgumentsCamelCase<ScorecardArgs>): Promise<void> {
  await warnIfBusy();
  const line = progress(args.json === true);
  // Report a wrong path before measuring for minutes.
  const committed = await committedResults(args.results ?? RESULTS);
  if (args.output !== undefined) await makeFolder(args.output);
  const evidence = await temporaryFolder(tmpdir(), 'scorecard', async (directory) =>
    gather(args, await contextOf(args, directory), committed, new Run(line.step)),
  ).finally(line.stop);
  const scored = score(evidence);
  await save('scorecard', args, scoreMeasured(scored, evidence));
  await print(args, scoreTable(scored), () => scoreText(scored, process.stdout.columns));
}

/** @throws CflowError NOT_READABLE for a missing model, USAGE if none is named and none is bundled */
export function sourceOf(named: string | undefined, bundled: string): string {
  const source = named ?? bundled;
  if (existsSync(source)) return source;
  if (named !== undefined) throw new CflowError('NOT_READABLE', 'cannot open: ENOENT', { file: named });
  throw new CflowError('USAGE', 'no model given, and the bundled one exists only in the repository', {
    field: '--model',
    remedy:
      'give a checkpoint or a .cflow file; cflow-bench synth model.cflow --format cflow --geometry arch2_4 writes one',
  });
}

async function contextOf({ model, quick }: ScorecardArgs, directory: string): Promise<QuickContext> {
  const source = sourceOf(model, MODEL);
  const { threads } = await threadBudget();
  const common = { directory, threads, quick };
  if (['.cflow', '.vflow'].includes(extname(source))) return { model: source, ...common };
  const converted = join(directory, 'model.cflow');
  await convert({ source, output: converted, signal: interruption });
  return { model: converted, ...common };
}

async function gather(
  args: ScorecardArgs,
  context: QuickContext,
  committed: Awaited<ReturnType<typeof committedResults>>,
  run: Run,
): Promise<EvidenceOf> {
  const wanted: readonly SourceName[] = args.only ?? SOURCE_NAMES;
  const evidence: Partial<Record<SourceName, Evidence>> = {};
  for (const [index, name] of SOURCE_NAMES.entries()) {
    const measured = wanted.includes(name)
      ? await measureSource(name, context, run.within(`${index + 1} of ${SOURCE_NAMES.length}, ${name}`))
      : {};
    evidence[name] = { ...measured, result: committed[name] };
    if (args.output !== undefined && evidence[name].measured)
      await keep(args.output, name, args, evidence[name].measured);
  }
  return evidence;
}

async function keep(
  folder: string,
  name: SourceName,
  args: ScorecardArgs,
  measured: NonNullable<Evidence['measured']>,
): Promise<void> {
  await writeResult(join(folder, `${name}.json`), await resultOf(name, { quick: args.quick }, measured));
}

/** @returns figures, or why there are none: a failing source does not affect the others */
async function measureSource(name: SourceName, context: QuickContext, run: Run): Promise<Evidence> {
  try {
    return { measured: await sourceOfName(name, context, run) };
  } catch (error) {
    if (error instanceof CflowError && error.code === 'INTERRUPTED') throw error;
    return { problem: withoutFolders(asCflowError(error).message) };
  }
}

/** Result files are published: removes directories of this machine. */
const withoutFolders = (message: string) => message.replace(/(?:\/[^\s:/]+)+\//g, '');

async function sourceOfName(name: SourceName, context: QuickContext, run: Run): Promise<Measured> {
  if (name === 'kernels') return variants(context, `isa=${kernelIsas().join(',')}`, run);
  if (name === 'delays') return variants(context, 'delayAware=on,off', run);
  if (name === 'ladder') {
    const remedy = 'cflow-bench overlap MODEL --ladder --save packages/bench/results/ladder.json';
    throw new CflowError('UNSUPPORTED', 'needs a model larger than the bundled one', { remedy });
  }
  const found = (await experiments()).find((experiment) => experiment.name === name);
  if (found?.quick) return found.quick(context, run);
  throw new CflowError('UNSUPPORTED', `${name} is finished research; its code is in the repository only`);
}

/** The best and worst instruction set of the CPU, and AVX2. */
function kernelIsas(): string[] {
  const { available = [] } = nativeMachine()?.isa() ?? {};
  if (available.length < 2) throw new CflowError('UNSUPPORTED', 'no vector kernels: no native addon');
  return [...new Set([available[0]!, ...available.filter((isa) => isa === 'avx2'), available.at(-1)!])];
}

async function variants({ model, threads, quick }: QuickContext, list: string, run: Run): Promise<Measured> {
  const options = {
    file: model,
    threads,
    runs: quick ? 3 : 9,
    tokens: quick ? 64 : 250,
    prefill: 16,
    warmup: 32,
    context: 0,
    variants: parseVariants([list], { engine: 'native' }),
  };
  return decodeMeasured(await benchDecode(options, run));
}
