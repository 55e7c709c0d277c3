/** What holds native memory, threads and descriptors, and for how long: collected handles, closing, child processes. */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { buildPlan, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { EngineHandle, NativeEngineOptions } from '../src/native/addon.js';
import { type Addon, loadAddon } from '../src/native/addon.js';
import { lowerPlan } from '../src/native/lower.js';
import { goldenFile } from './model-file.js';
import { modelOpener } from './opened.js';
import { slowModel } from './slow-model.js';

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc') as () => void;
const addon = loadAddon() as Addon;
const OPTIONS: NativeEngineOptions = {
  weights: 'mapped',
  arithmetic: 'f32',
  cache: 'f32',
  threads: 2,
  maxBatch: 8,
  isa: '',
  profile: false,
  shareShort: true,
  recordRoutings: false,
};

let directory: string;
let small: string;
let slow: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-handles-'));
  small = join(directory, 'small.cflow');
  slow = join(directory, 'slow.cflow');
  await writeFile(small, (await goldenFile('arch2_4')).bytes);
  await writeFile(slow, await slowModel());
});
afterAll(() => rm(directory, { recursive: true }));

const open = modelOpener({ engine: 'native', threads: 2 });

/** An engine without a Model around it. */
async function openEngine(path: string, options: Partial<NativeEngineOptions> = {}) {
  const source = await openFileSource(path);
  const file = await openModel(source);
  const { program } = lowerPlan(buildPlan(file.config, { transfers: 'none' }), file, {
    arithmetic: 'f32',
    delayAware: true,
  });
  const engine = await addon.openEngine(source.fd!, source.size, program, { ...OPTIONS, ...options });
  await source.close();
  return { engine, vocabSize: program.vocabSize };
}

/** Collects until it holds, or for five seconds. */
async function eventually(holds: () => boolean): Promise<boolean> {
  for (let i = 0; i < 250 && !holds(); i++) {
    await setTimeout(20);
    gc();
  }
  return holds();
}

const mappings = () => readFileSync('/proc/self/maps', 'latin1').split('\n').length;
const descriptors = () => readdirSync('/proc/self/fd').length;

describe.runIf(process.platform === 'linux')('what is collected', () => {
  it('sessions give back their memory and leave no thread behind', async () => {
    const { engine, vocabSize } = await openEngine(small);
    const drop = async (count: number) => {
      for (let i = 0; i < count; i++) {
        await engine.createSession().run(Int32Array.of(1, 2), new Float32Array(vocabSize), false);
      }
    };
    await drop(20);
    const { external } = process.memoryUsage();
    const before = mappings();
    await drop(200);
    expect(await eventually(() => process.memoryUsage().external <= external)).toBe(true);
    expect(await eventually(() => mappings() < before + 40)).toBe(true);
    await engine.close();
  });

  it('engines give back threads, mappings and descriptors', async () => {
    const drop = async (count: number) => {
      for (let i = 0; i < count; i++) (await openEngine(small)).engine.createSession();
    };
    const [maps, fds] = [mappings(), descriptors()];
    await drop(60);
    expect(await eventually(() => mappings() < maps + 60 && descriptors() <= fds)).toBe(true);
  });

  it('an engine whose handle is collected lives until its jobs have ended, and its sessions are gone', async () => {
    const { session, reference, vocabSize } = await (async () => {
      const { engine, vocabSize } = await openEngine(slow);
      return { session: engine.createSession(), reference: new WeakRef<EngineHandle>(engine), vocabSize };
    })();
    const logits = new Float32Array(vocabSize);
    const run = session.run(
      Int32Array.from({ length: 64 }, (_, i) => i),
      logits,
      false,
    );
    expect(await eventually(() => reference.deref() === undefined)).toBe(true);
    await run;
    expect(logits.some((value) => value !== 0)).toBe(true);
    await session.run(Int32Array.of(1), logits, false);
  });
});

it('waiting for the disk and for destruction leaves the pool of libuv to others', async () => {
  const source = await openFileSource(slow);
  const measure = { block: 4096, depth: 1, milliseconds: 500, backend: 'threads', mode: 'buffered' } as const;
  let ended = 0;
  const probes = Array.from({ length: 8 }, () =>
    addon.diskBandwidth(source.fd!, source.size, measure).finally(() => ended++),
  );
  await stat(slow);
  expect(ended).toBe(0);
  await Promise.all(probes);
  await source.close();
});

it.runIf(process.platform === 'linux').each([
  ['mapped', { weights: 'mapped' }],
  ['offloaded', { weights: 'direct', direct: { expertSlots: 8 } }],
] as const)('child processes inherit no descriptor: %s', async (_name, options) => {
  const model = await open(small, options as object);
  await model.createSession().prefill([1, 2, 3]);
  const { stdout } = spawnSync('ls', ['-l', '/proc/self/fd'], { encoding: 'utf8' });
  expect(stdout).not.toMatch(/cflow|deleted|io_uring|perf_event/);
  await model.close();
});
