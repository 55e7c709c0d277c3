/** Layers that begin early: the same as layers side by side; what a line explains; verdicts. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildPlan, type ModelFile, openModel, type WeightRef } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { Interpreter } from '@cflow/runtime-native/internal/reference/interpreter.js';
import { FileWeightStore, type WeightStore } from '@cflow/runtime-native/internal/weights.js';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { benchResidual, type ResidualReport } from '../src/research/residual/bench.js';
import { fit, linearR2, predict } from '../src/research/residual/experts.js';
import { residual, residualMeasured, verdictOf } from '../src/research/residual/residual.js';
import { requireAdditive, Speculation } from '../src/research/residual/speculate.js';
import { resultSchema } from '../src/runner/result.js';
import { sampler } from '../src/runner/tokens.js';
import { modelOf } from '../src/synth/geometry.js';
import { synthesizeModel } from '../src/synth/model.js';

const IDS = [3, 17, 5, 200, 9];
let directory: string;
let dense: string;
let experts: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-residual-test-'));
  dense = await make('dense-1.1b', 2);
  experts = await make('arch2_4', 3);
});
afterAll(() => rm(directory, { recursive: true }));

async function make(name: string, layers: number): Promise<string> {
  const target = join(directory, `${name}.cflow`);
  const config = modelOf(name, { layers }, 1);
  const small = config.layers.map((layer) => ({
    ...layer,
    attention: { ...layer.attention, heads: 4, kvHeads: 4 },
    ...(layer.ffn ? { ffn: { ...layer.ffn, dim: 128 } } : {}),
    ...(layer.experts ? { experts: { ...layer.experts, dim: 64 } } : {}),
  }));
  const geometry = { ...config, hiddenDim: 64, vocabSize: 256, layers: small };
  await synthesizeModel({ target, format: 'cflow', dtype: 'f32', seed: 1, geometry });
  return target;
}

async function withModel<T>(
  path: string,
  use: (file: ModelFile, weights: FileWeightStore) => Promise<T>,
): Promise<T> {
  const source = await openFileSource(path);
  try {
    const file = await openModel(source);
    return await use(file, new FileWeightStore(source, file));
  } finally {
    await source.close();
  }
}

/** The weights of a layer as those of layer 0. */
function onlyLayer(weights: WeightStore, layer: number): WeightStore {
  const named = (name: string) => name.replace(/^layers\.0\./, `layers.${layer}.`);
  const of = ({ stream, tensor }: WeightRef) => ({ stream: named(stream), tensor: named(tensor) });
  return {
    load: (stream) => weights.load(named(stream)),
    tensor: (ref) => weights.tensor(of(ref)),
    row: (ref, row) => weights.row(of(ref), row),
  };
}

describe('layers that begin early', () => {
  it('change nothing where none does', () =>
    withModel(dense, async ({ config }, weights) => {
      const plan = buildPlan(config, { transfers: 'none' });
      const [plain, watched] = [new Interpreter(plan, weights), new Interpreter(plan, weights)];
      const { onStep } = new Speculation(watched, 0);
      for (const id of IDS) {
        await plain.step(id);
        await watched.step(id, { onStep });
      }
      expect(watched.logits).toEqual(plain.logits);
    }));

  it('add what each gives of the same input, token after token', () =>
    withModel(dense, async ({ config }, weights) => {
      const plan = buildPlan(config, { transfers: 'none' });
      const early = new Interpreter(plan, weights);
      const { onStep } = new Speculation(early, Number.POSITIVE_INFINITY);
      const single = buildPlan({ ...config, layers: [config.layers[0]!] }, { transfers: 'none' });
      const alone = [0, 1].map((layer) => new Interpreter(single, onlyLayer(weights, layer)));
      for (const id of IDS) {
        await early.step(id, { onStep });
        for (const interpreter of alone) await interpreter.step(id);
        const embedded = await weights.row({ stream: 'embedding', tensor: 'embed_tokens.weight' }, id);
        const [a, b] = alone.map((interpreter) => interpreter.buffer(single.residuals[0]!.buffer));
        const expected = embedded.map((x, i) => a![i]! + b![i]! - x);
        const got = early.buffer(plan.residuals[1]!.buffer);
        for (const [i, value] of expected.entries()) expect(got[i]).toBeCloseTo(value, 4);
      }
    }));

  it('are counted as the threshold has them', () => {
    const buffers: Record<string, Float32Array> = { e: Float32Array.of(10), a: new Float32Array(1) };
    const residuals = [1, 2, 3, 4].map((step, layer) => ({ layer, step, buffer: 'a' }));
    const plan = { steps: [{ op: 'embed', out: 'e' }], residuals };
    const interpreter = { plan, buffer: (name: string) => buffers[name]! } as unknown as Interpreter;
    const speculation = new Speculation(interpreter, 0.05);
    const end = (step: number, value: number) => {
      buffers.a![0] = value;
      speculation.onStep(step);
      return buffers.a![0];
    };
    speculation.onStep(0);
    // Gives 0.25 of 10: little, so that layer 1 reads 10.
    expect(end(1, 10.25)).toBe(10);
    // Gives 1 of 10, which 0.25 is still to be added to.
    expect(end(2, 11)).toBe(11.25);
    // Layer 2 has waited; it gives 2.25 of 11.25: too much for layer 3 to have begun.
    expect(end(3, 13.5)).toBe(13.5);
    expect(end(4, 13.5)).toBe(13.5);
    expect([speculation.accepted, speculation.rejected]).toEqual([1, 1]);
    const expected = [0.025, 1 / 10.25, 0.2, 0];
    for (const [i, ratio] of speculation.ratios.entries()) expect(ratio).toBeCloseTo(expected[i]!, 6);
  });

  it('need a residual that is added to', () => {
    const plan = (name: string) => buildPlan(modelOf(name, { layers: 4 }, 1), { transfers: 'none' });
    expect(() => requireAdditive(plan('arch2_4'))).not.toThrow();
    expect(() => requireAdditive(plan('olmoe'))).not.toThrow();
    expect(() => requireAdditive(plan('arch3'))).toThrow('has no residual that layers add to');
    const halved = { ...modelOf('arch2_4', { layers: 4 }, 1), combineStyle: 'parallelSqrt2' as const };
    expect(() => requireAdditive(buildPlan(halved, { transfers: 'none' }))).toThrow('parallelSqrt2 has no');
  });
});

describe('a line', () => {
  const features = Array.from({ length: 40 }, (_, i) => Float32Array.of(i % 7, (i * i) % 11));
  const targets = features.map(([a, b]) => Float32Array.of(2 * a! - b! + 3, 0.5 * b!));
  const part = (from: number, to?: number) => ({
    features: features.slice(from, to),
    targets: targets.slice(from, to),
  });

  it('is found, and explains everything', () => {
    expect(predict(fit(part(0, 30)), Float32Array.of(4, 6))[0]).toBeCloseTo(5, 4);
    expect(predict(fit(part(0, 30)), Float32Array.of(4, 6))[1]).toBeCloseTo(3, 4);
    expect(linearR2(part(0, 30), part(30))).toBeCloseTo(1, 6);
  });
  it('explains nothing of what does not depend on it', () => {
    const bits = targets.map((_, i) => Float32Array.of((i * 2654435761) % 97));
    const r2 = linearR2(
      { features: features.slice(0, 30), targets: bits.slice(0, 30) },
      { features: features.slice(30), targets: bits.slice(30) },
    );
    expect(r2).toBeLessThan(0.3);
  });
  it('is found among features that depend on one another', () => {
    const double = ({ features: own, ...rest }: ReturnType<typeof part>) => ({
      ...rest,
      features: own.map(([a, b]) => Float32Array.of(a!, b!, a! + b!)),
    });
    expect(linearR2(double(part(0, 30)), double(part(30)))).toBeCloseTo(1, 4);
  });
});

it('draws tokens as likely as they are', () => {
  const next = sampler(1, [2]);
  const logits = Float32Array.of(Math.log(6), Math.log(3), 0);
  const drawn = Array.from({ length: 3000 }, () => next(logits));
  const share = (id: number | undefined) => drawn.filter((other) => other === id).length / drawn.length;
  expect(share(0)).toBeCloseTo(0.6, 1);
  expect(share(1)).toBeCloseTo(0.3, 1);
  expect(share(undefined)).toBeCloseTo(0.1, 1);
});

describe('the verdict', () => {
  const row = { accepted: 1, latency: 0.5, work: 1, kl: 0 };
  const report = (ratio: number, sameToken: number, r2: number): ResidualReport => ({
    model: 'm',
    tokens: 3,
    ratios: [[1, 1, 1], ...Array.from({ length: 3 }, () => [ratio, ratio, 9])],
    speculation: [{ ...row, threshold: 0.05, sameToken }],
    predictor: [{ layer: 0, r2 }],
  });
  it('holds by both criteria only', () => {
    expect(verdictOf(report(0.04, 0.995, 0.8))).toMatchObject({
      approachA: true,
      approachB: true,
      smallLayers: 0.75,
    });
    expect(verdictOf(report(0.06, 1, 0.6))).toMatchObject({
      approachA: false,
      approachB: false,
      smallLayers: 0,
    });
    expect(verdictOf(report(0.04, 0.9, 0.8)).approachA).toBe(false);
  });
  it('has k of a ratio that falls with the root of the layers', () => {
    expect(verdictOf(report(0.75, 1, 1)).k).toBeCloseTo(1.5, 12);
  });
});

it('watches a model with experts, by its own words and by texts', async () => {
  const options = {
    model: experts,
    tokens: 60,
    seed: 1,
    thresholds: [0.05, Number.POSITIVE_INFINITY],
    directory,
  };
  const report = await benchResidual(options);
  expect(report.ratios.map((own) => own.length)).toEqual([60, 60, 60]);
  expect(report.predictor.map(({ layer }) => layer)).toEqual([0, 1, 2]);
  const [, always] = report.speculation;
  // Of three layers the second can begin early; so can the third only where the second did not.
  expect(always).toMatchObject({ accepted: 1, work: 1 });
  expect(always!.latency).toBeCloseTo(2 / 3, 12);
  const { metrics, tables } = residualMeasured(report);
  expect(resultSchema.shape.metrics.parse(metrics)).toHaveLength(5);
  expect(resultSchema.shape.tables.parse(tables)).toHaveLength(4);
  const texts = join(directory, 'texts.txt');
  await writeFile(texts, 'once');
  await expect(benchResidual({ ...options, texts })).rejects.toMatchObject({ code: 'USAGE' });
});

it('is quick for the scorecard', async () => {
  const { tables } = await residual.quick!({ model: experts, directory, threads: 1, quick: true });
  expect(tables!.at(-1)!.rows.map(([name]) => name)).toEqual([
    'A: the residual dominates',
    'B: the router tells',
  ]);
});
