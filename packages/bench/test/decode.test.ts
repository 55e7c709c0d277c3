import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { NativeStats } from '@cflow/runtime-native';
import { nativeMachine } from '@cflow/runtime-native/internal/native/machine.js';
import { captured } from '@cflow/test-kit/captured';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { main } from '../src/cli.js';
import { loadPeer, PEER_VERSION } from '../src/engines/llama.js';
import {
  benchDecode,
  type DecodeBenchOptions,
  type DecodeReport,
  type DecodeRow,
} from '../src/experiments/decode/bench.js';
import { profileSince, promptIds } from '../src/experiments/decode/run.js';
import { parseVariants } from '../src/experiments/decode/variants.js';
import { Run } from '../src/runner/experiment.js';
import { spread } from '../src/runner/statistics.js';
import { synthesizeModel } from '../src/synth/model.js';

// The real measurement reads 1 GiB in every round.
vi.mock('../src/runner/machine.js', async (original) => {
  const machine = await original<typeof import('../src/runner/machine.js')>();
  return { ...machine, readBandwidth: (threads: number) => machine.readBandwidth(threads, 2 ** 24) };
});

let dir: string;
let file: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-decode-test-'));
  file = join(dir, 'tiny.cflow');
  await synthesizeModel({ target: file, format: 'cflow', geometry: 'llama-tiny', dtype: 'q4_0', seed: 1 });
});
afterAll(() => rm(dir, { recursive: true }));

const lengths = { tokens: 3, prefill: 5, warmup: 2, context: 0 };

function bench(change: Partial<DecodeBenchOptions> = {}, run?: Run): Promise<DecodeReport> {
  const variants = parseVariants([], { engine: 'reference' });
  return benchDecode({ file, threads: 2, runs: 2, variants, ...lengths, ...change }, run);
}

describe('a measurement', () => {
  it('gives each run, its rates, and the planned bytes', async () => {
    const report = await bench({ variants: parseVariants(['threads=1,2'], { engine: 'reference' }) });
    expect(report.rows.map(({ engine, threads }) => [engine, threads])).toEqual([
      ['cflow threads=1', 1],
      ['cflow threads=2', 2],
    ]);
    // Stripes of 128 rows and fewer, 72 or 200 columns = 3 or 7 groups of 18 bytes, a header of 16 for each tile:
    // q, o 72 rows, k, v 36; gate, up 200 rows in two stripes; down 72 rows; two norms; and the head and final norm.
    const [three, seven] = [3 * 18, 7 * 18];
    const attention = 4 * 16 + (2 * 72 + 2 * 36) * three + 4 * 72;
    const dense = 4 * 16 + 2 * 200 * three + 16 + 72 * seven + 4 * 72;
    expect(report.plannedBytesPerToken).toBe(3 * (attention + dense) + 4 * 72 + 5 * 16 + 523 * three);
    // Without the addon there is nothing to measure it with.
    const bandwidth = Object.entries(report.readBandwidth);
    expect(bandwidth.map(([threads]) => threads)).toEqual(nativeMachine() ? ['1', '2'] : []);
    for (const [, { min, max }] of bandwidth) {
      expect(min).toBeGreaterThan(0.1);
      expect(max).toBeLessThan(50_000);
    }
    for (const { runs, decodeTokensPerSecond: speed, gigabytesPerSecond: rate, ...row } of report.rows) {
      expect(runs.length).toBe(2);
      const speeds = runs.map(({ decodeSeconds }) => 3 / decodeSeconds);
      expect([speed.min, speed.max]).toEqual([Math.min(...speeds), Math.max(...speeds)]);
      expect(rate.median).toBeCloseTo((speed.median * report.plannedBytesPerToken) / 1e9, 9);
      expect(row.backend).toBe('reference');
      for (const run of runs) {
        expect(run.tokenSeconds.length).toBe(3);
        const sum = run.tokenSeconds.reduce((total, seconds) => total + seconds, 0);
        expect(sum).toBeGreaterThan(0.5 * run.decodeSeconds);
        expect(sum).toBeLessThanOrEqual(run.decodeSeconds);
        expect(run.peakBytes).toBeGreaterThan(20 * 2 ** 20);
      }
    }
  });

  it('decodes at a context depth too', async () => {
    const report = await bench({ runs: 1, context: 6 });
    const [{ runs, contextDecodeTokensPerSecond: atDepth }] = report.rows as [DecodeRow];
    expect(atDepth).toEqual(spread([3 / runs[0]!.contextDecodeSeconds!]));
  });

  it('fails as the run fails, without a stack', async () => {
    const damaged = join(dir, 'damaged.cflow');
    const bytes = await readFile(file);
    await writeFile(damaged, bytes.fill(1, bytes.length - 100));
    const failed = bench({ file: damaged, runs: 1 });
    await expect(failed).rejects.toMatchObject({ code: 'VERIFY_FAILED' });
    await expect(failed).rejects.toThrowError(/lm_head: .*checksum is [0-9a-f]{8}/);
  });

  it.each([
    [{ prefill: 300 }, 'LIMIT_EXCEEDED', '300 tokens do not fit the context of 256'],
    [{ context: 250 }, 'LIMIT_EXCEEDED', '253 tokens do not fit the context of 256'],
    [{ gguf: 'no-such.gguf' }, 'NOT_READABLE', 'no-such.gguf: cannot open: ENOENT'],
    [{ file: 'no-such.cflow' }, 'NOT_READABLE', 'no-such.cflow: cannot open: ENOENT'],
  ])('refuses %j before anything is measured', async (change, code, message) => {
    const step = vi.fn();
    const refused = bench(change, new Run(step));
    await expect(refused).rejects.toMatchObject({ code });
    await expect(refused).rejects.toThrowError(message);
    expect(step).not.toHaveBeenCalled();
  });
});

describe('variants', () => {
  it('are all combinations, on top of what all have', () => {
    expect(parseVariants(['delayAware=on,off', 'weights=mapped,resident'], { profile: true })).toEqual([
      {
        name: 'cflow delayAware=on weights=mapped',
        options: { profile: true, delayAware: true, weights: 'mapped' },
      },
      {
        name: 'cflow delayAware=on weights=resident',
        options: { profile: true, delayAware: true, weights: 'resident' },
      },
      {
        name: 'cflow delayAware=off weights=mapped',
        options: { profile: true, delayAware: false, weights: 'mapped' },
      },
      {
        name: 'cflow delayAware=off weights=resident',
        options: { profile: true, delayAware: false, weights: 'resident' },
      },
    ]);
    expect(parseVariants([], {})).toEqual([{ name: 'cflow', options: {} }]);
  });

  it.each([
    ['speed=1'],
    ['weights=here'],
    ['threads=0'],
    ['threads=1.5'],
    ['delayAware'],
    ['isa='],
    ['toString=on'],
  ])('refuse %s', (text) => {
    expect(() => parseVariants([text], {})).toThrowError(expect.objectContaining({ code: 'USAGE' }));
  });

  it('refuse an option given twice', () => {
    expect(() => parseVariants(['threads=1', 'threads=2'], {})).toThrowError('threads is given twice');
  });
});

describe('the peer', () => {
  it('is found among the packages of a folder', async () => {
    const peer = join(dir, 'project', 'node_modules', 'node-llama-cpp');
    await mkdir(join(peer, 'dist'), { recursive: true });
    await writeFile(join(peer, 'package.json'), '{"type":"module"}');
    await writeFile(join(peer, 'dist', 'index.js'), 'export const getLlama = () => "found";');
    const { getLlama } = await loadPeer([dir, join(dir, 'project')]);
    expect(getLlama({})).toBe('found');
  });

  it('is asked for by the command that installs it', async () => {
    const missing = loadPeer([dir]);
    await expect(missing).rejects.toMatchObject({ code: 'UNSUPPORTED' });
    await expect(missing).rejects.toThrowError(`npm install --no-save node-llama-cpp@${PEER_VERSION}`);
  });
});

it('the profile of a part is the difference of two states', () => {
  const state = (calls: number, seconds: number) =>
    ({ profile: [{ name: 'matvec', calls, seconds, bytes: 100 * calls }] }) as unknown as NativeStats;
  expect(profileSince(state(2, 1), state(5, 3))).toEqual([
    { name: 'matvec', calls: 3, seconds: 2, bytes: 300 },
  ]);
  expect(profileSince(state(2, 1), state(2, 1))).toEqual([]);
  expect(profileSince(undefined, undefined)).toEqual([]);
});

it('prompts stay inside the vocabulary and repeat', () => {
  for (const vocabSize of [2, 300, 523, 50_304]) {
    const ids = promptIds(1000, vocabSize);
    expect(ids.every((id) => Number.isInteger(id) && id > 0 && id < vocabSize)).toBe(true);
    expect(promptIds(1000, vocabSize)).toEqual(ids);
  }
  expect(new Set(promptIds(512, 50_304)).size).toBe(512);
});

describe('the command', () => {
  async function run(...argv: string[]): Promise<{ exit: number; out: string; err: string }> {
    const { code, out, err } = await captured(main, argv);
    return { exit: code, out, err };
  }

  it('prints one JSON document', async () => {
    const args = ['--engine', 'reference', '--tokens', '2', '--prefill', '3', '--warmup', '1', '--runs', '1'];
    const { exit, out, err } = await run('decode', file, ...args, '--json');
    expect([exit, err]).toEqual([0, '']);
    expect(JSON.parse(out)).toMatchObject({ model: 'llama-tiny', tokens: 2, rows: [{ engine: 'cflow' }] });
  });

  it.each([
    [['decode', 'x.cflow', '--threads', '0'], '--threads is 0, expected 1 to 1024'],
    [['decode', 'x.cflow', '--variants', 'speed=1'], 'unknown option "speed"'],
    [['synth', 'x', '--geometry', 'olmoe'], 'use --format cflow or gguf'],
    [['synth', 'x', '--format', 'gguf', '--shards', '2'], '--shards does not apply'],
    [['synth', 'x', '--dtype', 'q4_0'], '--dtype q4_0 does not apply to --format checkpoint'],
    [['synth', 'x', '--format', 'cflow', '--dtype', 'bf16'], '--dtype bf16 does not apply to --format cflow'],
    [['synth', 'x', '--layers', '2'], '--layers does not apply'],
    [['synth', 'x', '--bytes', '9', '--layers', '2'], 'mutually exclusive'],
  ])('refuses %j', async (argv, message) => {
    const { exit, out, err } = await run(...argv);
    expect([exit, out]).toEqual([2, '']);
    expect(err).toContain(message);
    expect(err.trim().split('\n').length).toBe(1);
  });

  it('writes a model and says how large it is', async () => {
    const { exit, out } = await run('synth', join(dir, 'new.cflow'), '--format', 'cflow', '--json');
    expect(exit).toBe(0);
    expect(JSON.parse(out)).toMatchObject({ parameters: 252_072, layers: 3, dtype: 'q4_0' });
  });
});
