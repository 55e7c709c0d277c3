/** Sessions and models that nobody closes: what they hold goes when they are collected. */
import { fstatSync, readdirSync, statSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Model } from '../src/model.js';
import { goldenFile } from './model-file.js';

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc') as () => void;

let directory: string;
let path: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-dropped-'));
  path = join(directory, 'model.cflow');
  await writeFile(path, (await goldenFile('arch5', {}, { contextLength: 4096 })).bytes);
});
afterAll(() => rm(directory, { recursive: true }));

/** Collects until it holds, or for five seconds. */
async function eventually(holds: () => boolean): Promise<boolean> {
  for (let i = 0; i < 250 && !holds(); i++) {
    // `deref` keeps its object until the turn of the event loop ends.
    await setTimeout(20);
    gc();
  }
  return holds();
}

async function dropSession(model: Model): Promise<WeakRef<object>> {
  const session = model.createSession();
  await session.prefill([1, 2, 3]);
  return new WeakRef(session);
}

it.each(['native', 'reference'] as const)('a dropped session of the engine %s is freed', async (engine) => {
  await using model = await Model.open(path, { engine });
  const kept = model.createSession();
  await kept.prefill([1]);
  gc();
  const before = process.memoryUsage().external;
  const dropped: WeakRef<object>[] = [];
  for (let i = 0; i < 20; i++) dropped.push(await dropSession(model));
  expect(await eventually(() => dropped.every((ref) => ref.deref() === undefined))).toBe(true);
  // What the addon has reported of its memory, caches of sessions included.
  const most = before + kept.stats().cacheBytes;
  expect(await eventually(() => process.memoryUsage().external <= most)).toBe(true);
  await kept.decode(1);
});

/** Descriptors of this process that are open on the model. */
function descriptors(): number {
  const { dev, ino } = statSync(path);
  return readdirSync('/dev/fd').filter((fd) => {
    try {
      const info = fstatSync(Number(fd));
      return info.dev === dev && info.ino === ino;
    } catch {
      // The one that the directory was read by.
      return false;
    }
  }).length;
}

it('the native engine needs no descriptor once it is open with its weights in memory', async () => {
  await using model = await Model.open(path, { engine: 'native', weights: 'resident' });
  await model.createSession().prefill([1]);
  expect(descriptors()).toBe(0);
});

it('a dropped model closes its file without a warning, and not while a session reads it', async () => {
  const warnings: Error[] = [];
  const listen = (warning: Error) => void warnings.push(warning);
  process.on('warning', listen);
  const openAndDrop = async () => (await Model.open(path, { engine: 'reference' })).createSession();
  let session: Awaited<ReturnType<typeof openAndDrop>> | undefined = await openAndDrop();
  for (let i = 0; i < 10; i++) {
    gc();
    await setTimeout(5);
  }
  await session.prefill([1, 2]);
  expect(descriptors()).toBe(1);
  session = undefined;
  expect(await eventually(() => descriptors() === 0)).toBe(true);
  await setTimeout(20);
  process.off('warning', listen);
  expect(warnings).toEqual([]);
});
