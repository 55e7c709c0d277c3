import { CflowError } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { KvCache } from '../src/reference/kv-cache.js';
import { runAlone, tensor } from './helpers.js';

const ref = (name: string) => ({ stream: 's', tensor: name });

describe('steps by hand', () => {
  it('embed scales the row of the token', async () => {
    const tensors = new Map([['e', tensor([3, 2], [1, 2, 3, 4, 5, 6])]]);
    const step = { op: 'embed', matrix: ref('e'), scale: 2, out: 'x' } as const;
    expect((await runAlone(step, { x: [0, 0] }, { tensors, token: 2 })).x).toEqual([10, 12]);
  });

  it('rmsNorm divides by the root mean square of each group; one weight serves every group', async () => {
    const tensors = new Map([['w', tensor([2], [1, 10])]]);
    const step = { op: 'rmsNorm', input: 'x', weight: ref('w'), groupSize: 2, eps: 0, out: 'x' } as const;
    // Groups (1, 7) and (30, 40): mean squares 25 and 1250.
    const { x } = await runAlone(step, { x: [1, 7, 30, 40] }, { tensors });
    expect(x!.map((v) => +v.toFixed(6))).toEqual([0.2, 14, 0.848528, 11.313708]);
  });

  it('rmsNorm without a weight adds eps under the root', async () => {
    const step = { op: 'rmsNorm', input: 'x', groupSize: 1, eps: 7, out: 'y' } as const;
    expect((await runAlone(step, { x: [3], y: [0] })).y).toEqual([0.75]);
  });

  it('matvec writes one output per matrix, with biases', async () => {
    const tensors = new Map([
      ['a', tensor([1, 2], [1, 2])],
      ['b', tensor([2, 2], [3, 4, 5, 6])],
      ['ab', tensor([1], [0.5])],
      ['bb', tensor([2], [0, -1])],
    ]);
    const step = {
      op: 'matvec',
      input: 'x',
      outs: [
        { out: 'y', matrix: ref('a'), bias: ref('ab') },
        { out: 'z', matrix: ref('b'), bias: ref('bb') },
      ],
    } as const;
    const out = await runAlone(step, { x: [10, 100], y: [0], z: [0, 0] }, { tensors });
    expect([out.y, out.z]).toEqual([[210.5], [430, 649]]);
  });

  it('rope turns dimension i against i + half, and leaves the rest of the head', async () => {
    const step = { op: 'rope', buffer: 'q', headDim: 6, rope: { theta: 100, rotaryDim: 4 } } as const;
    const { q } = await runAlone(step, { q: [1, 0, 0, 1, 5, 6] }, { position: 2 });
    const expected = [Math.cos(2), -Math.sin(0.2), Math.sin(2), Math.cos(0.2), 5, 6];
    for (const [i, value] of expected.entries()) expect(q![i]).toBeCloseTo(value, 6);
  });

  it('attend shares a kv head between query heads', async () => {
    const cache = new KvCache(2);
    cache.append(Float32Array.of(0, 0), Float32Array.of(1, 10));
    cache.append(Float32Array.of(Math.log(3), 0), Float32Array.of(5, 30));
    const step = {
      op: 'attend',
      cache: 0,
      q: 'q',
      out: 'o',
      heads: 4,
      kvHeads: 2,
      headDim: 1,
      scale: 0.5,
    } as const;
    // Head 0: scores 0 and ln 3 → weights ¼ and ¾ → 4. Head 1 does not look: even weights → 3. Heads 2 and 3: even → 20.
    const { o } = await runAlone(step, { q: [2, 0, 7, 1], o: [9, 9, 9, 9] }, { cache });
    expect(o!.map((v) => +v.toFixed(5))).toEqual([4, 3, 20, 20]);
  });

  it('attend with a window of w sees exactly w keys, the current one included', async () => {
    const cache = new KvCache(1, 2);
    for (const v of [100, 2, 4]) cache.append(Float32Array.of(0), Float32Array.of(v));
    const base = {
      op: 'attend',
      cache: 0,
      q: 'q',
      out: 'o',
      heads: 1,
      kvHeads: 1,
      headDim: 1,
      scale: 1,
    } as const;
    expect((await runAlone({ ...base, window: 2 }, { q: [1], o: [0] }, { cache })).o).toEqual([3]);
    expect((await runAlone({ ...base, window: 1 }, { q: [1], o: [0] }, { cache })).o).toEqual([4]);
  });

  it('attend soft-caps the scaled scores', async () => {
    const cache = new KvCache(1);
    cache.append(Float32Array.of(1000), Float32Array.of(1));
    cache.append(Float32Array.of(-1000), Float32Array.of(0));
    const step = {
      op: 'attend',
      cache: 0,
      q: 'q',
      out: 'o',
      heads: 1,
      kvHeads: 1,
      headDim: 1,
      scale: 1,
      softcap: 1,
    } as const;
    // Capped to +1 and −1: 1 / (1 + e^−2).
    expect((await runAlone(step, { q: [1], o: [0] }, { cache })).o![0]).toBeCloseTo(
      1 / (1 + Math.exp(-2)),
      6,
    );
  });

  it('glu applies the activation to the gate', async () => {
    const step = { op: 'glu', gate: 'g', up: 'u', activation: 'silu', out: 'h' } as const;
    expect((await runAlone(step, { g: [1, 0], u: [2, 3], h: [0, 0] })).h![0]).toBeCloseTo(
      1.4621171572600098,
      6,
    );
  });

  it('route: softmax over the chosen, or over all', async () => {
    const logits = [Math.log(1), Math.log(4), Math.log(3), Math.log(2)];
    const step = { op: 'route', logits: 'l', topK: 2, normalize: true, out: 'r' } as const;
    const round = (r: number[]) => r.map((v) => +v.toFixed(5));
    expect(round((await runAlone(step, { l: logits, r: [0, 0, 0, 0] })).r!)).toEqual([
      1, 2, 0.57143, 0.42857,
    ]);
    const raw = { ...step, normalize: false } as const;
    expect(round((await runAlone(raw, { l: logits, r: [0, 0, 0, 0] })).r!)).toEqual([1, 2, 0.4, 0.3]);
  });

  it('route takes the lower index of equal logits, and refuses NaN', async () => {
    const step = { op: 'route', logits: 'l', topK: 1, normalize: true, out: 'r' } as const;
    expect((await runAlone(step, { l: [0, 2, 2], r: [0, 0] })).r).toEqual([1, 1]);
    const nan = runAlone(step, { l: [Number.NaN, Number.NaN], r: [0, 0] });
    await expect(nan).rejects.toThrowError(CflowError);
  });

  it('experts sums the chosen by weight', async () => {
    const tensors = new Map(
      [0, 1, 2].flatMap((e) => {
        const at = (p: string) => `layers.3.experts.${e}.${p}_proj.weight`;
        const one = (value: number) => tensor([1, 1], [value]);
        return [
          [at('gate'), one(1e3)],
          [at('up'), one(1)],
          [at('down'), one(10 ** e)],
        ] as [string, ReturnType<typeof tensor>][];
      }),
    );
    const chosen = { layer: 3, routing: 'r', topK: 2, dim: 1 };
    const up = { op: 'expertsUp', ...chosen, input: 'x', activation: 'silu', hidden: 'h' } as const;
    const down = { op: 'expertsDown', ...chosen, hidden: 'h', out: 'm' } as const;
    const routing = [2, 0, 0.75, 0.25];
    // silu(1000 · 2) = 2000, times up 2 = 4000; experts 2 (×100, weight ¾) and 0 (×1, weight ¼).
    const { h } = await runAlone(up, { x: [2], r: routing, h: [7, 7] }, { tensors });
    expect(h).toEqual([4000, 4000]);
    const { m } = await runAlone(down, { h: h!, r: routing, m: [7] }, { tensors });
    expect(m).toEqual([301_000]);
  });

  it('sum may write into one of its terms', async () => {
    const step = { op: 'sum', terms: ['x', 'y'], coefficients: [1, 0.5], out: 'x' } as const;
    expect((await runAlone(step, { x: [1, 2], y: [10, 20] })).x).toEqual([6, 12]);
  });

  it('clamp limits on both sides; NaN stays', async () => {
    const { l } = await runAlone(
      { op: 'clamp', buffer: 'l', limit: 1.5 },
      { l: [-7, -1.5, 0.25, 2, Number.NEGATIVE_INFINITY, Number.NaN] },
    );
    expect(l).toEqual([-1.5, -1.5, 0.25, 1.5, -1.5, Number.NaN]);
  });

  it('softcap', async () => {
    const { l } = await runAlone({ op: 'softcap', buffer: 'l', cap: 30 }, { l: [0, 30, 1e6] });
    expect(l![0]).toBe(0);
    expect(l![1]).toBeCloseTo(22.8478246786729, 4);
    expect(l![2]).toBe(30);
  });

  it('sync without a call is a defect of the plan', async () => {
    const step = { op: 'sync', target: { kind: 'stream', stream: 's' } } as const;
    await expect(runAlone(step, {})).rejects.toThrowError(/never called/);
  });
});
