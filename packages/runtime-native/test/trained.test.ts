/**
 * Trained checkpoints of the six architectures, converted to .cflow and .vflow, against PyTorch (`golden/trained_*`):
 * residual norms, router choices, final norm and logits of the interpreter and of the native engine, in one batch and
 * token by token.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { convert } from '@cflow/convert';
import type { Dtype } from '@cflow/format';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { argmax, difference, goldenJson, goldenPath, norm } from './helpers.js';
import { interpreted, type NativeOptions, PATHS, type Traced } from './traced.js';

const ARCHITECTURES = ['arch1', 'arch2_4', 'arch2_4_sync', 'arch3', 'arch4', 'arch5'] as const;
const CONTAINERS = ['cflow', 'vflow'] as const;
/** Of numbers that both sides compute from the same weights. */
const TOLERANCE = 1e-4;
/** The report's bars for Q4_0. */
const NORM_BAR = 0.01;
const TOP_BAR = 27;
/** What the native engine does by default. */
const FAST: NativeOptions = { arithmetic: 'q8', cache: 'f16' };

type Run = (path: string, ids: readonly number[], options?: NativeOptions) => Promise<Traced[]>;
const RUNS: Readonly<Record<string, Run>> = {
  interpreter: interpreted,
  'native, one batch': PATHS.batch,
  'native, token by token': PATHS['token by token'],
};
/**
 * Activations in front of tiles have 15 bits in decoding and 8 in a batch, whose rounding changes some residual of
 * these narrow models by as much as 2.2 %; all else meets the bars in both.
 */
const FAST_RUNS = [
  ['native, token by token', NORM_BAR],
  ['native, one batch', 0.03],
] as const;

/** What PyTorch recorded of one set of weights, by position. */
interface Recorded {
  residualNorms: number[][];
  finalNorms: number[];
  routerIndices?: number[][][];
  routerWeights?: number[][][];
  /** The 32 largest logits, largest first. */
  top32: Record<string, { ids: number[]; logits: number[] }>;
}
interface TrainedTrace extends Recorded {
  tokens: number[];
  logits: Record<string, number[]>;
  argmax: number[];
  /** The same with matrices that went through Q4_0 by the report's rule. */
  q4: Recorded;
}

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-trained-'));
});
afterAll(() => rm(directory, { recursive: true }));

async function converted(arch: string, dtype: Dtype, container: string): Promise<string> {
  const output = join(directory, `${arch}.${dtype}.${container}`);
  const source = goldenPath(`trained_${arch}`, '.');
  await convert({ source, output, dtype, scaleSearch: false, threads: 1, overwrite: true });
  return output;
}

const positions = (of: Record<string, unknown>) => Object.keys(of).map(Number);
const top = (x: Float32Array, count: number) => [...x.keys()].sort((a, b) => x[b]! - x[a]!).slice(0, count);

/** Largest relative differences of residual norms and of final norms, over all layers and positions. */
function normErrors(actual: readonly Traced[], expected: Recorded) {
  const relative = (x: Float32Array, wanted: number) => Math.abs(norm(x) / wanted - 1);
  const residual = expected.residualNorms.flatMap((norms, position) => {
    expect(actual[position]!.residuals).toHaveLength(norms.length);
    return norms.map((wanted, layer) => relative(actual[position]!.residuals[layer]!, wanted));
  });
  const final = expected.finalNorms.map((wanted, position) => relative(actual[position]!.final, wanted));
  return { residual: Math.max(...residual), final: Math.max(...final) };
}

/** Norms, router choices and router weights are those of PyTorch. */
function expectSameState(actual: readonly Traced[], expected: Recorded): void {
  expect(actual).toHaveLength(expected.residualNorms.length);
  const { residual, final } = normErrors(actual, expected);
  expect(residual).toBeLessThan(TOLERANCE);
  expect(final).toBeLessThan(TOLERANCE);
  const routings = actual.map((token) => token.routings.map((both) => [...both]));
  const k = (routings[0]?.[0]?.length ?? 0) / 2;
  const part = (from: number, to: number) => routings.map((layers) => layers.map((r) => r.slice(from, to)));
  if (!expected.routerIndices || !expected.routerWeights) {
    expect(k).toBe(0);
    return;
  }
  expect(part(0, k)).toEqual(expected.routerIndices);
  expect(difference(part(k, 2 * k).flat(2), expected.routerWeights.flat(2))).toBeLessThan(TOLERANCE);
}

/** How many of the 32 largest logits are among the 32 expected, at the position where it is fewest. */
function fewestShared(actual: readonly Traced[], { top32 }: Recorded): number {
  const shared = positions(top32).map((position) => {
    const wanted = new Set(top32[position]!.ids);
    return top(actual[position]!.logits, wanted.size).filter((id) => wanted.has(id)).length;
  });
  return Math.min(...shared);
}

describe.each(ARCHITECTURES)('trained %s', (arch) => {
  const trace = goldenJson(`trained_${arch}`, 'trace.json') as TrainedTrace;
  const { tokens, q4 } = trace;

  describe.each(CONTAINERS)('.%s', (container) => {
    it.each(Object.entries(RUNS))('f32 tiles are PyTorch to 1e-4: %s', async (_name, run) => {
      const actual = await run(await converted(arch, 'f32', container), tokens);
      expectSameState(actual, trace);
      expect(actual.map(({ logits }) => argmax(logits))).toEqual(trace.argmax);
      for (const position of positions(trace.logits)) {
        expect(difference(actual[position]!.logits, trace.logits[position]!)).toBeLessThan(TOLERANCE);
      }
      for (const position of positions(trace.top32)) {
        const { ids, logits } = trace.top32[position]!;
        const found = ids.map((id) => actual[position]!.logits[id]!);
        expect(difference(found, logits)).toBeLessThan(TOLERANCE);
      }
    });

    it.each(Object.entries(RUNS))('q4_0 tiles are PyTorch in Q4_0 to 1e-4: %s', async (_name, run) => {
      const actual = await run(await converted(arch, 'q4_0', container), tokens);
      expectSameState(actual, q4);
      for (const position of positions(q4.top32)) {
        const { ids, logits } = q4.top32[position]!;
        const found = ids.map((id) => actual[position]!.logits[id]!);
        expect(difference(found, logits)).toBeLessThan(TOLERANCE);
        expect(argmax(actual[position]!.logits)).toBe(ids[0]);
      }
    });
  });

  it.each(FAST_RUNS)('q4_0 tiles in q8 arithmetic against the bars: %s', async (name, residualBar) => {
    const actual = await RUNS[name]!(await converted(arch, 'q4_0', 'cflow'), tokens, FAST);
    const { residual, final } = normErrors(actual, q4);
    expect(residual).toBeLessThan(residualBar);
    expect(final).toBeLessThan(NORM_BAR);
    expect(fewestShared(actual, q4)).toBeGreaterThanOrEqual(TOP_BAR);
    const chosen = positions(q4.top32).map((position) => argmax(actual[position]!.logits));
    expect(chosen).toEqual(Object.values(q4.top32).map(({ ids }) => ids[0]));
  });

  // Of the bars against the unquantized model, final norms and the top 32 are met; residual norms within 1 % and equal
  // arg max at every position are not, by PyTorch's own Q4_0 neither: rows of 32 weights are one group each here.
  it('q4_0 tiles against the unquantized model: what Q4_0 costs at this width', async () => {
    const actual = await PATHS.batch(await converted(arch, 'q4_0', 'cflow'), tokens);
    const { residual, final } = normErrors(actual, trace);
    expect(final).toBeLessThan(NORM_BAR);
    expect(fewestShared(actual, trace)).toBeGreaterThanOrEqual(TOP_BAR);
    expect(residual).toBeLessThan(0.25);
    const same = actual.filter(({ logits }, position) => argmax(logits) === trace.argmax[position]);
    expect(same.length).toBeGreaterThanOrEqual(26);
  });
});
