/** Models within one budget. */
import { copyFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { ModelPool, readModels } from '../src/pool.js';
import { models } from './helpers.js';

/** A pool of three models with room for `count` of them; its events so far. */
async function poolOf(count: number) {
  const path = join(await models(), 'stories.cflow');
  const infos = await readModels(['a', 'b', 'c'].map((id) => ({ id, path })));
  const changes: string[] = [];
  const pool = new ModelPool(infos, {
    room: count * infos[0]!.fileBytes,
    open: { threads: 1 },
    onChange: (event, id) => changes.push(`${event} ${id}`),
  });
  onTestFinished(() => pool.close());
  const use = async (id: string) => (await pool.acquire(id)).release();
  return { pool, changes, use };
}

it('loads models when they are asked for, and unloads the one used longest ago', async () => {
  const { changes, use } = await poolOf(2.5);
  for (const id of ['a', 'b', 'a', 'c', 'c', 'a', 'b']) await use(id);
  expect(changes).toEqual(['loaded a', 'loaded b', 'unloaded b', 'loaded c', 'unloaded c', 'loaded b']);
});

it('loads a model once for all who ask at the same time', async () => {
  const { changes, use } = await poolOf(3);
  await Promise.all(['a', 'a', 'b', 'a'].map(use));
  expect(changes).toEqual(['loaded a', 'loaded b']);
});

it('waits while all others are in use, and unloads none of them', async () => {
  const { pool, changes } = await poolOf(1);
  const first = await pool.acquire('a');
  const second = pool.acquire('b');
  const third = pool.acquire('c');
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(changes).toEqual(['loaded a']);
  first.release();
  first.release();
  (await second).release();
  (await third).release();
  expect(changes).toEqual(['loaded a', 'unloaded a', 'loaded b', 'unloaded b', 'loaded c']);
});

it('opens a model that is larger than the room, alone', async () => {
  const { changes, use } = await poolOf(0.5);
  await use('a');
  await use('b');
  expect(changes).toEqual(['loaded a', 'unloaded a', 'loaded b']);
});

it('tries again what could not be opened', async () => {
  const path = join(await models(), 'again.cflow');
  const stories = join(await models(), 'stories.cflow');
  await copyFile(stories, path);
  const infos = await readModels([{ id: 'a', path }]);
  const pool = new ModelPool(infos, { room: 1e9, open: { threads: 1 } });
  onTestFinished(() => pool.close());
  await rm(path);
  await expect(pool.acquire('a')).rejects.toThrow('cannot open');
  await copyFile(stories, path);
  (await pool.acquire('a')).release();
});

it('refuses two models of one name, and files that are none', async () => {
  const path = join(await models(), 'stories.cflow');
  await expect(
    readModels([
      { id: 'a', path },
      { id: 'a', path: 'other' },
    ]),
  ).rejects.toThrow('NAME=FILE');
  await expect(readModels([{ id: 'a', path: `${path}.missing` }])).rejects.toThrow('cannot open');
});
