import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { WorkerPool } from '../src/pipeline/pool.js';

/** Around the ends of blocks, of their padding and of reads, longest and shortest side by side. */
const SIZES = [
  300_000,
  0,
  1,
  55,
  56,
  63,
  64,
  65,
  119,
  120,
  262_143,
  262_144,
  262_145,
  524_288,
  262_144 - 9,
  3,
];

let directory: string;
let files: { path: string; sha256: string }[];

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-hash-'));
  files = await Promise.all(
    SIZES.map(async (size, index) => {
      const bytes = Uint8Array.from({ length: size }, (_, i) => (i * 31 + index) ^ (i >> 8));
      const path = join(directory, String(index));
      await writeFile(path, bytes);
      return { path, sha256: createHash('sha256').update(bytes).digest('hex') };
    }),
  );
});
afterAll(() => rm(directory, { recursive: true }));

describe('the threads that hash', () => {
  it.each([1, 2])('give what node:crypto gives, with %d threads', async (threads) => {
    const pool = new WorkerPool(threads, 'hash-worker.js');
    try {
      const found = await Promise.all(files.map(({ path }) => pool.run({ kind: 'hash', path })));
      expect(found).toEqual(files.map(({ sha256 }) => ({ sha256 })));
    } finally {
      await pool.close();
    }
  });

  it('report a file that cannot be read, and go on with the others', async () => {
    const pool = new WorkerPool(1, 'hash-worker.js');
    try {
      const missing = pool.run({ kind: 'hash', path: join(directory, 'missing') });
      const others = files.slice(0, 3).map(({ path }) => pool.run({ kind: 'hash', path }));
      await expect(missing).rejects.toThrow('ENOENT');
      expect(await Promise.all(others)).toEqual(files.slice(0, 3).map(({ sha256 }) => ({ sha256 })));
    } finally {
      await pool.close();
    }
  });
});
