/** The two hypotheses of the report's §6.3, on a trained model, by the reference interpreter. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { convert } from '@cflow/convert';
import { buildPlan, type ExecutionPlan, type ModelFile } from '@cflow/format';
import { readTextFile } from '@cflow/format/node';
import { TextTokenizer } from '@cflow/runtime-native';
import { Interpreter } from '@cflow/runtime-native/internal/reference/interpreter.js';
import { FileWeightStore } from '@cflow/runtime-native/internal/weights.js';
import { Run } from '../../runner/experiment.js';
import { withModelFile } from '../../runner/files.js';
import { breathe, interruption, temporaryFolder } from '../../runner/resources.js';
import { argmax, klDivergence } from '../../runner/statistics.js';
import { sampler, textIds } from '../../runner/tokens.js';
import { RouterRecord } from './experts.js';
import { requireAdditive, Speculation } from './speculate.js';

export interface ResidualOptions {
  /** .cflow, .vflow or checkpoint directory; the latter is converted in f32. */
  readonly model: string;
  /** Text file; absent: text generated at temperature 1. */
  readonly texts?: string | undefined;
  /** Tokens in total. */
  readonly tokens: number;
  readonly seed: number;
  /** A layer starts early if the layer below adds less than this, relative to its input. */
  readonly thresholds: readonly number[];
  /** Directory for a converted checkpoint. */
  readonly directory: string;
}

export interface SpeculationRow {
  readonly threshold: number;
  /** Share of the layers that could start early whose early result was accepted. */
  readonly accepted: number;
  /** Relative latency if two layers overlapped perfectly: accepted layers are free. */
  readonly latency: number;
  /** Layers computed, including recomputed ones, relative to layers of the model. */
  readonly work: number;
  /** Share of positions with the same most likely token as the exact model. */
  readonly sameToken: number;
  /** Mean KL divergence from the exact model's distribution, nats. */
  readonly kl: number;
}

export interface ResidualReport {
  readonly model: string;
  readonly tokens: number;
  /** By layer and token: |output added| / |input|. */
  readonly ratios: readonly (readonly number[])[];
  readonly speculation: readonly SpeculationRow[];
  /** Layers with experts; empty without. */
  readonly predictor: readonly { readonly layer: number; readonly r2: number }[];
}

interface Opened {
  readonly plan: ExecutionPlan;
  readonly weights: FileWeightStore;
}

/** Share of tokens to fit the predictor; the others test it. */
const FITTED = 0.75;

/** @throws CflowError UNSUPPORTED if layers do not add to one residual; errors of conversion and readers */
export function benchResidual(options: ResidualOptions, run = new Run()): Promise<ResidualReport> {
  return temporaryFolder(options.directory, 'residual', async (folder) =>
    observeFile(await asFile(options.model, folder), options, run),
  );
}

function observeFile(file: string, options: ResidualOptions, run: Run): Promise<ResidualReport> {
  return withModelFile(file, async (model, source) => {
    const plan = buildPlan(model.config, { transfers: 'none' });
    requireAdditive(plan);
    const { texts, tokens } = options;
    const given = texts === undefined ? undefined : await idsOf(model, texts, tokens);
    const exact = await observe({ plan, weights: new FileWeightStore(source, model) }, given, options, run);
    return { model: model.config.name, ...exact };
  });
}

async function asFile(model: string, folder: string): Promise<string> {
  if (!(await stat(model).catch(() => undefined))?.isDirectory()) return model;
  const output = join(folder, 'model.cflow');
  await convert({ source: model, output, dtype: 'f32', signal: interruption });
  return output;
}

async function idsOf({ config, metadata }: ModelFile, file: string, tokens: number): Promise<number[][]> {
  const tokenizer = metadata.tokenizer && new TextTokenizer(metadata.tokenizer);
  return textIds(await readTextFile(file), { tokenizer, contextLength: config.contextLength }, tokens);
}

/** A sequence of tokens, and the logits of the exact model after each. */
interface Sequence {
  readonly ids: number[];
  readonly logits: Float32Array[];
}

async function observe(
  opened: Opened,
  given: readonly number[][] | undefined,
  options: ResidualOptions,
  run: Run,
) {
  run.step('exact model');
  const ratios: number[][] = opened.plan.residuals.map(() => []);
  const sequences: Sequence[] = [];
  let record: RouterRecord | undefined;
  let tokens = 0;
  const next = sampler(options.seed, opened.plan.config.eosTokenIds);
  const watch = async (ids: readonly number[] | undefined) => {
    const interpreter = new Interpreter(opened.plan, opened.weights);
    const speculation = new Speculation(interpreter, 0);
    const routers = new RouterRecord(interpreter, record);
    record = routers;
    const watchers = { onStep: speculation.onStep, onPhase: routers.onPhase };
    const sequence: Sequence = { ids: [], logits: [] };
    sequences.push(sequence);
    const most = Math.min(opened.plan.config.contextLength, options.tokens - tokens);
    let id = ids ? ids[0] : firstToken(opened.plan);
    while (id !== undefined && sequence.ids.length < most) {
      await breathe();
      await interpreter.step(id, watchers);
      sequence.ids.push(id);
      sequence.logits.push(interpreter.logits.slice());
      for (const [layer, ratio] of speculation.ratios.entries()) ratios[layer]!.push(ratio);
      id = ids ? ids[sequence.ids.length] : next(interpreter.logits);
    }
    tokens += sequence.ids.length;
  };
  for (const ids of given ?? []) await watch(ids);
  while (!given && tokens < options.tokens) await watch(undefined);
  const speculation: SpeculationRow[] = [];
  for (const threshold of options.thresholds) {
    run.step(`layers start early below ${threshold}`);
    speculation.push(await speculate(opened, sequences, threshold));
  }
  return { tokens, ratios, speculation, predictor: record?.r2(FITTED) ?? [] };
}

const firstToken = ({ config: { bosTokenId, eosTokenIds } }: ExecutionPlan) =>
  bosTokenId ?? eosTokenIds[0] ?? 1;

async function speculate(
  { plan, weights }: Opened,
  sequences: readonly Sequence[],
  threshold: number,
): Promise<SpeculationRow> {
  const sum = { accepted: 0, rejected: 0, same: 0, kl: 0, positions: 0 };
  for (const { ids, logits } of sequences) {
    const interpreter = new Interpreter(plan, weights);
    const speculation = new Speculation(interpreter, threshold);
    for (const [i, id] of ids.entries()) {
      await breathe();
      await interpreter.step(id, { onStep: speculation.onStep });
      sum.same += Number(argmax(interpreter.logits) === argmax(logits[i]!));
      sum.kl += klDivergence(logits[i]!, interpreter.logits);
      sum.positions++;
    }
    sum.accepted += speculation.accepted;
    sum.rejected += speculation.rejected;
  }
  const layers = plan.residuals.length * sum.positions;
  return {
    threshold,
    accepted: sum.accepted / (sum.accepted + sum.rejected),
    latency: (layers - sum.accepted) / layers,
    work: (layers + sum.rejected) / layers,
    sameToken: sum.same / sum.positions,
    kl: sum.kl / sum.positions,
  };
}
