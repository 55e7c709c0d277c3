/** `cflow-bench scorecard`. */
import { existsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { convert } from '@cflow/convert';
import { CflowError } from '@cflow/format';
import { threadBudget } from '@cflow/runtime-native';
import { warnIfBusy } from '../harness/busy.js';
import { type Builder, print, SHARED } from '../harness/cli-common.js';
import { makeFolder } from '../harness/files.js';
import { type Progress, progress } from '../harness/progress.js';
import type { MeasureContext } from '../harness/quick.js';
import { interruption, temporaryFolder } from '../harness/resources.js';
import { writeResult } from '../harness/result.js';
import { resultOf, save } from '../harness/save.js';
import { committedResults, score, scoreMeasured, scoreTable } from './scorecard.js';
import { type Evidence, type EvidenceOf, measureSource, SOURCE_NAMES, type SourceName } from './sources.js';
import { scoreText } from './text.js';

const at = (path: string) => fileURLToPath(new URL(`../../${path}`, import.meta.url));
const RESULTS = at('results');
const MODEL = at('../../models/stories-arch2_4');

export function scorecardOptions(y: Builder) {
  return y
    .option('quick', { type: 'boolean', default: false, describe: 'the bundled model alone, in minutes' })
    .option('model', { type: 'string', describe: 'checkpoint or model file [default: the bundled one]' })
    .option('only', {
      type: 'string',
      array: true,
      choices: SOURCE_NAMES,
      describe: 'measure these; the others from results [default: all]',
    })
    .option('results', {
      type: 'string',
      describe: 'folder of result files for what is not measured [default: the committed ones]',
    })
    .option('output', { type: 'string', describe: 'folder for a result file of each source' })
    .option('save', SHARED.save);
}

type ScorecardArgs = Awaited<ReturnType<ReturnType<typeof scorecardOptions>['parse']>>;

export async function runScorecard(args: ScorecardArgs & { json?: unknown }): Promise<void> {
  await warnIfBusy();
  const line = progress(args.json === true);
  // Before minutes are spent.
  const committed = await committedResults(args.results ?? RESULTS);
  if (args.output !== undefined) await makeFolder(args.output);
  const evidence = await temporaryFolder(tmpdir(), 'scorecard', async (directory) =>
    gather(args, await contextOf(args, directory), committed, line),
  ).finally(line.stop);
  const scored = score(evidence);
  await save('scorecard', args, () => scoreMeasured(scored, evidence));
  await print(args, scoreTable(scored), () => scoreText(scored, process.stdout.columns));
}

/** @throws CflowError NOT_READABLE for a model that is not there, USAGE if none is named where none is bundled */
export function sourceOf(named: string | undefined, bundled: string): string {
  const source = named ?? bundled;
  if (existsSync(source)) return source;
  if (named !== undefined) throw new CflowError('NOT_READABLE', 'cannot open: ENOENT', { file: named });
  throw new CflowError('USAGE', 'no model is named, and the bundled one is in the repository alone', {
    field: '--model',
    remedy:
      'name a checkpoint, or a .cflow; cflow-bench synth model.cflow --format cflow --geometry arch2_4 writes one',
  });
}

async function contextOf({ model, quick }: ScorecardArgs, directory: string): Promise<MeasureContext> {
  const source = sourceOf(model, MODEL);
  const { threads } = await threadBudget();
  const common = { directory, threads, quick };
  if (['.cflow', '.vflow'].includes(extname(source))) return { model: source, ...common };
  const converted = join(directory, 'model.cflow');
  await convert({ source, output: converted, signal: interruption });
  return { model: converted, checkpoint: source, ...common };
}

async function gather(
  args: ScorecardArgs,
  context: MeasureContext,
  committed: Awaited<ReturnType<typeof committedResults>>,
  line: Progress,
): Promise<EvidenceOf> {
  const wanted: readonly SourceName[] = args.only ?? SOURCE_NAMES;
  const evidence: Partial<Record<SourceName, Evidence>> = {};
  for (const [index, name] of SOURCE_NAMES.entries()) {
    line.step(`${index + 1} of ${SOURCE_NAMES.length}: ${name}`);
    const measured = wanted.includes(name) ? await measureSource(name, context) : {};
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
