/** Experts on disk: the model of overlapping, cells, memory groups, and a whole run of a small model. */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ModelConfig } from '@cflow/format';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { benchOverlap } from '../src/experiments/overlap/bench.js';
import {
  type BlockRow,
  blocksMeasured,
  chooseBlocks,
  sweepBlocks,
} from '../src/experiments/overlap/blocks.js';
import {
  cellsOf,
  ladder,
  memoryBudget,
  openOptions,
  shareBudget,
  slotsOf,
  variantOf,
} from '../src/experiments/overlap/cells.js';
import { ladderMeasured, overlapMeasured } from '../src/experiments/overlap/measured.js';
import { balanced, type CellTimes, checkModel } from '../src/experiments/overlap/model.js';
import { quickOptions } from '../src/experiments/overlap/overlap.js';
import { MemoryGroup } from '../src/runner/memory.js';
import { resultSchema } from '../src/runner/result.js';
import { randomIds } from '../src/runner/tokens.js';
import { score } from '../src/scorecard/score.js';
import { modelOf } from '../src/synth/geometry.js';
import { synthesizeModel } from '../src/synth/model.js';

const IO = { block: 65_536, depth: 2, backend: 'auto', mode: 'auto' } as const;
const LENGTHS = { prompt: 2, warmup: 3, tokens: 4 };
let directory: string;
let path: string;
let config: ModelConfig;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-overlap-test-'));
  path = join(directory, 'model.cflow');
  config = { ...modelOf('arch2_4', { layers: 3 }, 1), vocabSize: 300 };
  await synthesizeModel({ target: path, format: 'cflow', dtype: 'q4_0', seed: 1, geometry: config });
});
afterAll(() => rm(directory, { recursive: true }));

describe('the model of overlapping', () => {
  /** Table 5.6 and Figure 5.1 of the report: 16 layers, IO_eff about 40 ms each; ms a token. */
  it.each([
    [32, 689, 641, 10.8, 32.3, 1.08],
    [16, 739, 644, 13.6, 32.6, 1.15],
    [8, 841, 645, 20.1, 32.5, 1.31],
  ])('gives the report’s figures for %d threads', (_, stall, overlap, compute, io, net) => {
    const c = 16 * compute;
    const times = { compute: c, stall, overlap, waited: overlap - c, busy: 16 * 40, io: 16 * io };
    const check = checkModel(times);
    expect(check.byVariants).toBeCloseTo(net, 1.7);
    expect(check.measured).toBeCloseTo(stall / overlap, 12);
    expect(check.interference).toBeCloseTo(0, 12);
    expect(check.overFloor).toBeCloseTo(overlap / 640, 12);
  });

  it('derives the interference from slower computing during reads', () => {
    const times: CellTimes = { compute: 10, stall: 18, overlap: 12, waited: 1, busy: 8, io: 6 };
    const check = checkModel(times);
    // 12 - 1 = 11 is a tenth more than 10; reading took 18 - 10 = 8.
    expect(check.interference).toBeCloseTo(0.1, 12);
    expect(check.stallIo).toBe(8);
    expect(check.byBandwidth).toBeCloseTo(16 / 11, 12);
    expect(check.byVariants).toBeCloseTo(18 / 11, 12);
  });

  it('finds the cell with the most similar computing and reading', () => {
    const cells = [1, 4, 30].map((busy) => ({ compute: 5, stall: 9, overlap: 7, waited: 0, io: 9, busy }));
    expect(balanced(cells, (cell) => cell)).toBe(cells[1]);
    expect(balanced([], (cell) => cell)).toBeUndefined();
  });
});

describe('cells', () => {
  it('hold a share of the experts, and never fewer than are in use', () => {
    // 3 layers of 8; 3 of them in flight with 2 each.
    expect(slotsOf(0.7, config)).toBe(17);
    expect(slotsOf(0.15, config)).toBe(6);
    expect(slotsOf(1, config)).toBe(24);
  });

  it('cross variants, threads and budgets, with one reference a number of threads', () => {
    const cells = cellsOf(
      [variantOf('stall'), variantOf('overlap')],
      [1, 2],
      [shareBudget(15), memoryBudget(2e9)],
    );
    expect(cells.map(({ name }) => name)).toEqual([
      '1 thread, resident',
      '15 %, 1 thread, stall',
      '15 %, 1 thread, overlap',
      '2000 MB, 1 thread, stall',
      '2000 MB, 1 thread, overlap',
      '2 threads, resident',
      '15 %, 2 threads, stall',
      '15 %, 2 threads, overlap',
      '2000 MB, 2 threads, stall',
      '2000 MB, 2 threads, overlap',
    ]);
    expect(openOptions(cells[0]!, config)).toEqual({ engine: 'native', threads: 1, weights: 'resident' });
    expect(openOptions(cells[2]!, config, 1e9)).toMatchObject({
      weights: 'direct',
      transfers: 'overlap',
      memory: 1e9,
      direct: { expertSlots: 6 },
    });
    expect(openOptions(cells[3]!, config, 2e9).direct).not.toHaveProperty('expertSlots');
  });
});

it('feeds every variant the same tokens, of the whole vocabulary', () => {
  const ids = randomIds(1000, 300);
  expect(ids).toEqual(randomIds(1000, 300));
  expect(Math.min(...ids)).toBeGreaterThanOrEqual(0);
  expect(Math.max(...ids)).toBeLessThan(300);
  expect(new Set(ids).size).toBeGreaterThan(250);
});

describe('memory groups', () => {
  it('report usage and whether the limit was exceeded', async () => {
    const root = await mkdtemp(join(directory, 'group-'));
    const group = (await MemoryGroup.create('a', 1000, root)) as MemoryGroup;
    expect(await readFile(join(group.folder, 'memory.limit_in_bytes'), 'utf8')).toBe('1000');
    await writeFile(join(group.folder, 'memory.max_usage_in_bytes'), '990\n');
    await writeFile(
      join(group.folder, 'memory.oom_control'),
      'oom_kill_disable 0\nunder_oom 0\noom_kill 2\n',
    );
    expect(await group.use()).toEqual({ limit: 1000, most: 990, killed: true });
    // The kernel's files go with the folder; here they must be removed first.
    for (const name of await readdir(group.folder)) await rm(join(group.folder, name));
    await group.remove();
    expect(await readdir(root)).toEqual([]);
  });

  it('are optional', async () => {
    expect(await MemoryGroup.create('a', 1000, join(directory, 'nowhere'))).toContain('ENOENT');
  });
});

describe('a small model', () => {
  it('gives the same logits in every variant, and figures of each', async () => {
    const cells = cellsOf(
      [variantOf('stall', IO), variantOf('overlap', IO), variantOf('predict', IO)],
      [1],
      [shareBudget(50)],
    );
    const report = await benchOverlap({ file: path, cells, runs: 1, io: IO, ...LENGTHS });
    const runs = report.rows.map((row) => row.runs.map(({ run }) => run!));
    expect(new Set(runs.flat().map(({ digest }) => digest)).size).toBe(1);
    expect(report.diskLimits).toHaveLength(1);
    for (const [own] of runs.slice(1)) {
      expect(own!.how.slots).toBe(12);
      // 4 tokens, 3 layers, 2 experts: each is found or read.
      expect(own!.tiers.hits + own!.tiers.predicted + own!.tiers.misses).toBe(24);
      // 3·512² weights at 18/32 bytes and the headers of their tiles, up to a whole page.
      expect(own!.tiers.bytesRead).toBe(own!.tiers.misses * 109 * 4096);
    }
  });

  it('measures the ladder', async () => {
    const cells = cellsOf(ladder(IO), [2], [shareBudget(50)]);
    const report = await benchOverlap({ file: path, cells, runs: 1, io: IO, ...LENGTHS });
    const { metrics, tables } = ladderMeasured(report);
    expect(report.rows[1]!.runs[0]!.run!.how).toMatchObject({ direct: false, uring: false });
    const scored = score({ ladder: { measured: { metrics } } });
    const { ours } = scored.find(({ row }) => row.needs[0] === 'ladder')!;
    expect(ours).toMatch(
      /^each relative to the previous: overlap .* ×, transfer suite .* ×, prediction and cache .* ×$/,
    );
    expect(resultSchema.shape.tables.parse(tables)![0]!.rows.map(([name]) => name)).toEqual([
      'no overlap',
      '+ overlap',
      '+ transfer suite',
      '+ prediction and cache',
    ]);
  });

  it('is quick for the scorecard, which asks for its gain over stalling', async () => {
    const options = quickOptions({ model: path, threads: 2 });
    const { metrics, tables } = overlapMeasured(await benchOverlap({ ...options, runs: 1 }));
    resultSchema.shape.metrics.parse(metrics);
    resultSchema.shape.tables.parse(tables);
    expect(metrics.filter(({ name }) => /overlap.*(by|over|times) stall/i.test(name))).toHaveLength(1);
    expect(metrics.map(({ name }) => name)).toContain('35 %, 2 threads, overlap: found in memory');
    const scored = score({ overlap: { measured: { metrics } } });
    const { ours } = scored.find(({ row }) => row.needs[0] === 'overlap')!;
    expect(ours).toMatch(/^[\d.,]+ × relative to stalling$/);
  });

  it('refuses a model without experts', async () => {
    const target = join(directory, 'dense.cflow');
    await synthesizeModel({ target, format: 'cflow', dtype: 'q4_0', seed: 1, geometry: 'llama-tiny' });
    const refused = benchOverlap({ file: target, cells: [], runs: 1, io: IO, ...LENGTHS });
    await expect(refused).rejects.toMatchObject({ code: 'UNSUPPORTED' });
  });
});

describe('block sizes', () => {
  const row = (block: number, depth: number, speed: number): BlockRow => ({ block, depth, speeds: [speed] });

  it('are chosen for the fewest bytes in flight that are nearly the fastest', () => {
    const rows = [row(65_536, 1, 1), row(65_536, 16, 3.9), row(262_144, 4, 3.85), row(1_048_576, 4, 4)];
    // 16 × 64 KiB and 4 × 256 KiB have 1 MiB in flight; the smaller blocks win.
    expect(chooseBlocks(rows)).toBe(rows[1]);
    expect(blocksMeasured(rows, { ...IO, block: 1_048_576, depth: 4 }).tables![0]!.title).toContain(
      'reach 100 %',
    );
  });

  it('are swept', async () => {
    const sizes = { blocks: [4096, 65_536, 2 ** 40], depths: [1, 3], runs: 2, milliseconds: 5 };
    const rows = await sweepBlocks({ file: path, io: IO, ...sizes });
    expect(rows.map(({ block, depth }) => [block, depth])).toEqual([
      [4096, 1],
      [4096, 3],
      [65_536, 1],
      [65_536, 3],
    ]);
    expect(resultSchema.shape.metrics.parse(blocksMeasured(rows, IO).metrics)).toHaveLength(4);
  });
});
