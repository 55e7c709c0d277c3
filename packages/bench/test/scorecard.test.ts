import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { captured } from '@cflow/test-kit/captured';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { main } from '../src/cli.js';
import { criticalPaths, pathMeasured } from '../src/experiments/critical-path.js';
import { fitLengths } from '../src/experiments/peers/bench.js';
import { structureOf } from '../src/experiments/structure.js';
import { type Metric, metric, readResult } from '../src/runner/result.js';
import { type EvidenceOf, SOURCE_NAMES } from '../src/scorecard/judging.js';
import { ROWS } from '../src/scorecard/rows.js';
import { committedResults, score, scoreText } from '../src/scorecard/score.js';
import { sourceOf } from '../src/scorecard/scorecard.js';
import { synthesizeModel } from '../src/synth/model.js';
import { resultWith } from './results.js';

const RESULTS = join(import.meta.dirname, '../results');

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-scorecard-test-'));
});
afterAll(() => rm(dir, { recursive: true }));

const verdict = (claim: string, evidence: EvidenceOf) => {
  const found = score(evidence).find(({ row }) => row.claim.startsWith(claim));
  return found!;
};
const here = (...metrics: Metric[]) => ({ measured: { metrics } });
const one = (name: string, ...runs: number[]) => metric(name, '', 'higher', runs);

describe('a verdict', () => {
  const claimOne = (counted: number): EvidenceOf => ({
    structure: here(
      one('experts stored over experts read', 4),
      one('weights a token', 1.4),
      one('weights a token, were all experts read', 2.4),
    ),
    kernels: here(one('cflow isa=avx2: weights a token', counted)),
  });

  it('on experts goes by the bytes that were counted', () => {
    expect(verdict('1 ', claimOne(1.3))).toMatchObject({ status: 'proven', from: 'here' });
    expect(verdict('1 ', claimOne(2.4)).status).toBe('refuted');
  });

  it.each([
    [[10, 11, 12], [1, 2, 3], 'proven'],
    [[1, 2, 3], [10, 11, 12], 'refuted'],
    [[1, 11, 12], [2, 3, 4], 'inconclusive'],
  ])('on kernels: decode %j against %j is %s', (best, worst, status) => {
    const kernels = here(one('cflow isa=avx2: decode', ...best), one('cflow isa=scalar: decode', ...worst));
    expect(verdict('3 ', { kernels }).status).toBe(status);
  });

  it.each([
    [2, 'proven', '9.00 to 4.50 MiB per token, 2.00 ×'],
    [1.9, 'refuted', '9.00 to 4.50 MiB per token, 1.90 ×'],
  ])('on the critical path goes by the reduction of %d', (reduction, status, ours) => {
    const metrics = [
      one('arch2_4: naive', 9),
      one('arch2_4: critical', 4.5),
      one('arch2_4: reduction', reduction),
    ];
    expect(verdict('7 ', { 'critical-path': here(...metrics) })).toMatchObject({ status, ours });
  });

  const tiles = (plain: number[], q8: number[]): EvidenceOf => {
    const of = (kernel: string, what: string, values: number[]) =>
      values.map((value, shape) =>
        one(`s${shape}, ${kernel} at a time, caches: ${what}, row-major by tiled`, value),
      );
    return {
      l1d: here(
        ...of('f32, a row', 'misses', plain),
        ...of('f32, 4 rows', 'misses', [0.5]),
        ...of('q8, a row', 'misses', q8),
        ...of('f32, a row', 'time', [0.9, 1.2]),
        ...of('q8, a row', 'time', [2, 3]),
      ),
    };
  };

  it.each([
    [[1.3, 6.6], [0.97, 4.8], 'proven', 'inconclusive'],
    [[0.9, 6.6], [1.1, 4.8], 'inconclusive', 'proven'],
    [[0.9, 0.8], [0.97, 0.5], 'refuted', 'refuted'],
  ])('on tiles goes by misses, each kernel by its own: %j and %j', (plain, q8, f32Status, q8Status) => {
    const evidence = tiles(plain, q8);
    const [f32, eight] = ['2 ', '2b '].map((claim) => verdict(claim, evidence));
    expect([f32!.status, eight!.status]).toEqual([f32Status, q8Status]);
    expect(f32!.by).toContain('misses of the report’s kernel (f32, a row at a time)');
    expect(eight!.by).toBe('misses, every shape');
  });

  it.each([
    [[0.5, 0.9], 'proven'],
    [[0.7, 17.1], 'inconclusive'],
    [[1.1, 17.1], 'refuted'],
  ])('on the model of overlap, off by %j %%, is %s whatever is won over stalling', (off, status) => {
    const overlap = here(
      one('15 %: overlap by stall', 1.2, 1.4),
      ...off.map((value, cell) => one(`${cell}: model off, reading from bandwidth`, value)),
    );
    expect(verdict('The gain of overlapping', { overlap }).status).toBe(status);
    expect(verdict('Delayed experts', { overlap }).status).toBe('proven');
  });

  const peers = (decode: number[], prefill: number): EvidenceOf => ({
    peers: {
      result: resultWith([
        one('olmoe: decode, times llama.cpp', ...decode),
        one('olmoe: decode in context, times llama.cpp', 1.2),
        one('olmoe: prefill, times llama.cpp', prefill),
        one('olmoe: same token chosen', 95.3),
      ]),
    },
  });

  it('against llama.cpp is of the ratio of every round, and names goals and origin', () => {
    const won = verdict('Comparison with llama.cpp: olmoe', peers([1.6, 1.5, 1.7], 3.1));
    expect(won).toMatchObject({
      status: 'proven',
      ours: 'decode 1.60 × (1.20 × at context depth), prefill 3.10 ×',
      from: 'committed 2026-01-02, Made-up 9000',
    });
    expect(won.by).toBe('decode, every round');
    expect(won.why).toContain('goal 1.5 × and 3 ×: reached');
    const missed = verdict('Comparison with llama.cpp: olmoe', peers([1.6, 1.5, 1.7], 2.9));
    expect(missed.why).toContain('missed');
    const both = verdict('Comparison with llama.cpp: olmoe', peers([0.9, 1.5, 1.7], 3.1));
    expect(both.status).toBe('inconclusive');
    expect(verdict('Comparison with llama.cpp: olmoe', peers([0.8, 0.9], 3.1)).status).toBe('refuted');
  });

  it('is none where a figure is missing; what was tried says why', () => {
    for (const scored of score({})) {
      const status = scored.row.needs.length ? 'not measured' : 'not testable here';
      expect(scored).toMatchObject({ status, from: '-' });
    }
    const problem = 'no native addon';
    expect(verdict('3 ', { kernels: { problem } })).toMatchObject({ status: 'not measured', why: problem });
  });

  it('of this machine comes before a committed one', () => {
    const [measured] = [
      here(one('arch2_4: naive', 9), one('arch2_4: critical', 3), one('arch2_4: reduction', 3)),
    ];
    const result = resultWith(pathMeasured(criticalPaths('q4_0')).metrics);
    expect(verdict('7 ', { 'critical-path': { ...measured, result } }).status).toBe('refuted');
    expect(verdict('7 ', { 'critical-path': { result } }).status).toBe('proven');
  });
});

it('wants a model where none is bundled, and says how to get one; one that is named must be there', () => {
  const none = join(dir, 'none');
  expect(sourceOf(dir, none)).toBe(dir);
  expect(sourceOf(undefined, dir)).toBe(dir);
  expect(() => sourceOf(undefined, none)).toThrowError(/--model: .*cflow-bench synth model\.cflow/);
  expect(() => sourceOf('no-such.cflow', dir)).toThrowError('no-such.cflow: cannot open: ENOENT');
});

it('has the eight claims of the report, in order, and every source decides something', () => {
  const claims = ROWS.flatMap(({ claim }) => /^(\d) /.exec(claim)?.[1] ?? []);
  expect(claims).toEqual(['1', '2', '3', '4', '5', '6', '7', '8']);
  expect(new Set(ROWS.flatMap(({ needs }) => needs))).toEqual(new Set(SOURCE_NAMES));
});

it('the bundled model proves what needs no timing', async () => {
  const output = join(dir, 'results');
  const args = ['--quick', '--only', 'critical-path', '--only', 'structure', '--results', dir];
  const { code, out } = await captured(main, ['scorecard', ...args, '--output', output, '--json']);
  expect(code).toBe(0);
  const { columns, rows } = JSON.parse(out) as { columns: string[]; rows: string[][] };
  expect(columns).toEqual(['claim', 'where', 'theirs', 'status', 'ours', 'decided by', 'from', 'why']);
  const status = new Map(rows.map(([claim, , , said]) => [claim!.slice(0, 2), said]));
  expect(['4 ', '5 ', '7 '].map((claim) => status.get(claim))).toEqual(['proven', 'proven', 'proven']);
  expect(status.get('Co')).toBe('not measured');
  expect((await readResult(join(output, 'structure.json'))).command).toBe('structure');
});

it('every verdict says which figure decides', async () => {
  const scored = score(
    Object.fromEntries(
      Object.entries(await committedResults(RESULTS)).map(([name, result]) => [name, { result }]),
    ),
  );
  const judged = scored.filter(({ row }) => row.needs.length);
  expect(judged.length).toBeGreaterThan(15);
  for (const { by, status } of judged) expect([by, status]).toEqual([expect.any(String), expect.anything()]);
});

it('ends with a table of a line each, no wider than the terminal, where there is room for it', () => {
  const scored = score({});
  for (const columns of [80, 200]) {
    const lines = scoreText(scored, columns).split('\n');
    const head = lines.findIndex((line) => /^status +claim +ours +theirs$/.test(line));
    const rows = lines.slice(head + 1, -2);
    expect(rows.map((row) => /^(not measured|not testable here) /.test(row))).toEqual(scored.map(() => true));
    expect(Math.max(...rows.map((row) => row.length))).toBeLessThanOrEqual(columns);
    expect(lines.at(-1)).toBe(`${scored.length - 1} not measured, 1 not testable here`);
  }
});

it('commands in folders of their own are found by the parser', async () => {
  const { out } = await captured(main, ['--help']);
  expect(out).toContain('cflow-bench l1d');
  expect(out).toContain('cflow-bench residual <model>');
});

it('the structure of a file, counted by hand', async () => {
  const file = join(dir, 'mixtral.cflow');
  await synthesizeModel({
    target: file,
    format: 'cflow',
    geometry: 'arch2_4',
    layers: 2,
    dtype: 'q4_0',
    seed: 1,
  });
  const source = await openFileSource(file);
  const metrics = new Map(structureOf(await openModel(source)).map((entry) => [entry.name, entry.median]));
  await source.close();
  // 8 experts, 2 chosen.
  expect(metrics.get('experts stored over experts read')).toBe(4);
  expect(metrics.get('matrices in one pass: attention')).toBe(3);
  expect(metrics.get('matrices in one pass: dense')).toBe(2);
  expect(metrics.get('streams asked for in file order')).toBe(100);
  // Six more experts in two layers: 3 matrices of 512 × 512, 8 tiles of 18,448 bytes each.
  const more = metrics.get('weights a token, were all experts read')! - metrics.get('weights a token')!;
  expect(more).toBeCloseTo((2 * 6 * 3 * 8 * 18_448) / 1e6, 9);
});

it('lengths shrink to the context of a small model', () => {
  const asked = { tokens: 32, prefill: 512, warmup: 128, context: 1024 };
  expect(fitLengths(asked, 2048)).toEqual(asked);
  expect(fitLengths(asked, 512)).toEqual({
    tokens: 32,
    prefill: 504,
    warmup: 128,
    context: 472,
  });
  expect(fitLengths(asked, 40)).toEqual({ tokens: 32, prefill: 32, warmup: 32, context: 0 });
});
