/** Under a memory cap: both engines' runs, how a run is prepared, and what is made of the figures. */
import { mkdir, mkdtemp, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Model } from '@cflow/runtime-native';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { choices, noRepackLibrary } from '../src/engines/llama.js';
import { cappedMeasured, MAPPED, OURS, SHIPPED } from '../src/experiments/capped/measured.js';
import { deviceNumbers, dropPages, readAheadKib } from '../src/experiments/capped/page-cache.js';
import type { CappedReport } from '../src/experiments/capped/report.js';
import { type CappedRun, runCapped } from '../src/experiments/capped/run.js';
import { runChild } from '../src/runner/child.js';
import { resultSchema } from '../src/runner/result.js';
import { randomIds } from '../src/runner/tokens.js';
import { modelOf } from '../src/synth/geometry.js';
import { synthesizeModel } from '../src/synth/model.js';
import { resultWith } from './results.js';

let directory: string;
let path: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-capped-test-'));
  path = join(directory, 'model.cflow');
  const geometry = { ...modelOf('arch2_4', { layers: 2 }, 1), vocabSize: 300 };
  await synthesizeModel({ target: path, format: 'cflow', dtype: 'q4_0', seed: 1, geometry });
});
afterAll(() => rm(directory, { recursive: true }));

describe('a run', () => {
  const lengths = { warmup: 2, tokens: 3 };
  const job = () => ({
    engine: 'cflow' as const,
    file: path,
    threads: 1,
    memory: 2 ** 30,
    vocabSize: 300,
    lengths,
  });

  /** The reference engine, all tokens at once. */
  async function expected(): Promise<number[]> {
    const model = await Model.open(path, { engine: 'reference' });
    const session = model.createSession();
    const chosen: number[] = [];
    await session.prefill(randomIds(5, 300), {
      onLogits: (_, logits) => void chosen.push(logits.indexOf(Math.max(...logits))),
    });
    await model.close();
    return chosen.slice(2);
  }

  it('decodes the given tokens, and keeps what would be chosen after each timed one', async () => {
    const run = await runCapped(job());
    expect(run.chosen).toEqual(await expected());
    expect(run.tokenSeconds).toHaveLength(3);
    expect(Math.min(...run.tokenSeconds)).toBeGreaterThan(0);
    expect(run.backend).toMatch(/^native \w+/);
  });

  it('joins its group, and is measured by a process that began there', async () => {
    const run = await runChild<CappedRun>('capped', job(), { group: directory });
    expect(await readFile(join(directory, 'cgroup.procs'), 'utf8')).toMatch(/^\d+$/);
    expect(run.chosen).toEqual(await expected());
  });

  it('asks the peer for its choice after each token, in one sequence', async () => {
    const asked: unknown[] = [];
    const controlledEvaluate = async (input: readonly unknown[]) => {
      asked.push(...input);
      return input.map((_, i) => (i ? undefined : { next: { token: 7 } }));
    };
    expect(await choices({ controlledEvaluate }, [5, 6])).toEqual([7, -1]);
    const wanted = { generateNext: { token: true, options: { temperature: 0 } } };
    expect(asked).toEqual([
      [5, wanted],
      [6, wanted],
    ]);
  });
});

describe('what a run begins with', () => {
  it('a file that is out of the page cache and whole', async () => {
    const before = await readFile(path);
    await dropPages(path);
    expect((await readFile(path)).equals(before)).toBe(true);
    await expect(dropPages(join(directory, 'none'))).rejects.toThrow('ENOENT');
  });

  it('the numbers of a device', () => {
    // makedev(254, 0), makedev(259, 300), makedev(8, 1) of glibc.
    expect([65_024, 0x11032c, 2049].map(deviceNumbers)).toEqual(['254:0', '259:300', '8:1']);
  });

  it('the readahead of its disk, of a partition’s too', async () => {
    const { dev } = await stat(path);
    const root = join(directory, 'block');
    const disk = join(directory, 'disk');
    await mkdir(join(disk, 'queue'), { recursive: true });
    await mkdir(join(disk, 'part'));
    await mkdir(root);
    await writeFile(join(disk, 'queue', 'read_ahead_kb'), '384\n');
    const link = join(root, deviceNumbers(dev));
    expect(await readAheadKib(path, root)).toBeUndefined();
    for (const target of [disk, join(disk, 'part')]) {
      await symlink(target, link);
      expect(await readAheadKib(path, root)).toBe(384);
      await rm(link);
    }
  });

  it('a library of one function, or none without a compiler', async () => {
    expect(await noRepackLibrary(directory, 'no-such-compiler')).toBeUndefined();
    // Stands for one that is there: writes its arguments where the library should be.
    const compiler = join(directory, 'cc');
    await writeFile(compiler, '#!/bin/sh\ncat "$5" > "$4"\n', { mode: 0o755 });
    const library = await noRepackLibrary(directory, compiler);
    expect(await readFile(library!, 'utf8')).toContain('_Z35ggml_backend_cpu_repack_buffer_typev(void)');
  });
});

const timed = (tokenSeconds: number, chosen: number[]): CappedRun => ({
  openSeconds: 1,
  tokenSeconds: chosen.map(() => tokenSeconds),
  chosen,
  bytesPerToken: 2e6,
  backend: 'b',
});
const tried = (run: CappedRun | undefined, killed = false) => ({
  run,
  group: { limit: 1e9, most: 9e8, killed },
});
const report = (...rows: CappedReport['rows'][number][]): CappedReport => ({
  model: 'm',
  fileBytes: 2e9,
  memory: 1e9,
  threads: 2,
  warmup: 1,
  tokens: 4,
  readAheadKib: 128,
  rows,
});
const ours = {
  engine: OURS,
  tries: [timed(0.1, [1, 2, 3, 4]), timed(0.2, [1, 2, 3, 4])].map((r) => tried(r)),
};
const shipped = { engine: SHIPPED, tries: [tried(undefined, true)] };

describe('what it says', () => {
  it('compares run by run with the peer that is not killed', () => {
    const mapped = {
      engine: MAPPED,
      tries: [timed(1, [1, 2, 3, 9]), timed(1, [1, 2, 9, 9])].map((r) => tried(r)),
    };
    const measured = cappedMeasured(report(ours, mapped, shipped));
    expect(resultSchema.parse(resultWith(measured.metrics, { tables: measured.tables }))).toBeTruthy();
    const known = new Map(measured.metrics.map(({ name, runs }) => [name, runs]));
    expect(known.get('cflow: decode')).toEqual([10, 5]);
    expect(known.get('decode, times llama.cpp')).toEqual([10, 5]);
    expect(known.get('same token chosen')).toEqual([75, 50]);
    expect(known.get(`${SHIPPED}: killed`)).toEqual([1]);
    expect(known.has(`${SHIPPED}: decode`)).toBe(false);
    const [figures] = measured.tables!;
    expect(figures!.rows[0]).toEqual([OURS, '7.50 (5.00–10.0)', '2.00', '900', '1.00', '0 of 2']);
    expect(figures!.rows[2]).toEqual([SHIPPED, null, null, '900', null, '1 of 1']);
  });

  it('pairs runs of the same round alone', () => {
    const mapped = { engine: MAPPED, tries: [tried(undefined, true), tried(timed(1, [1, 2, 3, 4]))] };
    const { metrics } = cappedMeasured(report(ours, mapped, shipped));
    expect(metrics.find(({ name }) => name === 'decode, times llama.cpp')?.runs).toEqual([5]);
  });

  it('says that nothing is compared without a compiler', () => {
    const { metrics, tables } = cappedMeasured(report(ours, shipped));
    expect(metrics.map(({ name }) => name)).not.toContain('decode, times llama.cpp');
    expect(tables![1]!.rows).toContainEqual([
      'not repacked',
      'not measured: no C compiler (cc) to build it with',
    ]);
    expect(tables![1]!.rows).toContainEqual([
      'disk readahead',
      '128 KiB; llama.cpp’s speed depends on it, and 128 KiB favors it',
    ]);
  });
});
