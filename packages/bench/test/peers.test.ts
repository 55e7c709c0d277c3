import { describe, expect, it } from 'vitest';
import { type DecodeReport, type DecodeRow, decodeMetrics } from '../src/experiments/decode/bench.js';
import { prefillMeasured } from '../src/experiments/decode/decode.js';
import type { DecodeRun } from '../src/experiments/decode/run.js';
import { against, benchPeers } from '../src/experiments/peers/bench.js';
import { peersMeasured } from '../src/experiments/peers/peers.js';
import { score } from '../src/scorecard/score.js';

const run = (change: Partial<DecodeRun>): DecodeRun => ({
  openSeconds: 1,
  firstTokenSeconds: 0.1,
  prefillSeconds: 2,
  decodeSeconds: 1,
  contextDecodeSeconds: 4,
  tokenSeconds: [],
  peakBytes: 100e6,
  backend: 'x',
  ...change,
});
const row = (engine: string, ...runs: DecodeRun[]) =>
  ({ engine, backend: `of ${engine}`, threads: 2, runs }) as unknown as DecodeRow;
const report = (...rows: DecodeRow[]) =>
  ({ model: 'olmoe', tokens: 32, prefill: 512, rows }) as unknown as DecodeReport;

const ours = row('cflow', run({}), run({ decodeSeconds: 2, openSeconds: 0.5, bytesPerToken: 5e6 }));
const theirs = row(
  'llama.cpp',
  run({ decodeSeconds: 2, prefillSeconds: 8, peakBytes: 200e6 }),
  run({ decodeSeconds: 3, openSeconds: 2 }),
);

describe('against llama.cpp', () => {
  it('ratios are of each round, and above 1 where ours is better, in time and in speed', () => {
    expect(against(report(ours, theirs))).toEqual({
      decode: [2, 1.5],
      'decode in context': [1, 1],
      prefill: [4, 1],
      open: [1, 4],
      'first token': [1, 1],
      'peak memory': [2, 1],
    });
  });

  it('gives the scorecard its figures by name', () => {
    const both = report(ours, theirs);
    const quality = {
      positions: 8,
      ours: { perplexity: 4.125, kl: 0.001 },
      theirs: { perplexity: 4, kl: 0.0005 },
      between: 0.0012345,
      sameToken: 0.75,
    };
    const measured = peersMeasured([{ model: 'olmoe', report: both, ratios: against(both), quality }]);
    const found = score({ peers: { measured } }).find(({ row: { claim } }) => claim.endsWith('olmoe'))!;
    expect(found).toMatchObject({
      status: 'proven',
      ours: 'decode 1.75 × (1.00 × at context depth), prefill 2.50 ×',
      why: 'same weights, same token at 75.0 % of positions; goal 1.5 × and 3 ×: missed',
    });
    expect(measured.tables![0]!.rows[0]).toEqual([
      'decode',
      '24.0 (16.0–32.0) tok/s',
      '13.3 (10.7–16.0) tok/s',
      '1.75 (1.50–2.00) ×',
    ]);
    expect(measured.tables![0]!.rows[6]).toEqual(['weights a token', '5.00 MB', null, null]);
    expect(measured.tables![0]!.rows.slice(-4)).toEqual([
      ['perplexity', '4.125', '4.000', '0.9697 ×'],
      ['KL from f32 arithmetic', '0.001000 nats', '0.0005000 nats', '0.5000 ×'],
      ['KL from ours to llama.cpp', '0.001234 nats', null, null],
      ['same token chosen, of 8', '75.0 %', null, null],
    ]);
    const figures = new Map(measured.metrics.map(({ name, median, better }) => [name, [median, better]]));
    expect(figures.get('olmoe cflow: perplexity')).toEqual([4.125, 'lower']);
    expect(figures.get('olmoe llama.cpp: KL from f32 arithmetic')).toEqual([0.0005, 'lower']);
    expect(figures.get('olmoe: KL from ours to llama.cpp')).toEqual([0.0012345, 'lower']);
  });

  it('begins nothing without the peer', async () => {
    const nothing = { tokens: 1, prefill: 1, warmup: 1, context: 0, checked: 0, threads: 1, runs: 1 };
    // Where it is installed there is nothing to do either.
    const done = benchPeers({ ...nothing, models: [] });
    await done.then(
      (comparisons) => expect(comparisons).toEqual([]),
      (error) => expect(error).toMatchObject({ code: 'UNSUPPORTED' }),
    );
  });
});

it('runs become metrics, and missing figures are omitted', () => {
  const metrics = new Map(decodeMetrics(report(ours), 'm ').map((entry) => [entry.name, entry.runs]));
  expect(metrics.get('m cflow: decode')).toEqual([32, 16]);
  expect(metrics.get('m cflow: prefill')).toEqual([256, 256]);
  expect(metrics.get('m cflow: peak memory')).toEqual([100, 100]);
  expect(metrics.get('m cflow: weights a token')).toEqual([5]);
  expect(metrics.has('m cflow: barriers a token')).toBe(false);
});

it('prompts of several lengths are metrics of their own', () => {
  const short = { ...report(ours), prefill: 32 };
  const { metrics } = prefillMeasured([short, report(ours)]);
  expect(metrics.map(({ name, runs }) => [name, runs])).toEqual([
    ['cflow: prompt of 32', [16, 16]],
    ['cflow: prompt of 512', [256, 256]],
  ]);
});
