import { open, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { directory } from '@cflow/test-kit/checkpoint';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { convert } from '../src/convert.js';
import { AtomicFile } from '../src/targets/atomic-file.js';
import { listing, llamaFiles } from './cli-fixture.js';

afterEach(() => vi.restoreAllMocks());

/** Replaces a method of every FileHandle. */
async function failing(dir: string, method: 'write' | 'sync', after: number, code: string): Promise<void> {
  const handle = await open(dir, 'r');
  const prototype = Object.getPrototypeOf(handle);
  await handle.close();
  const original = prototype[method];
  let calls = 0;
  vi.spyOn(prototype, method).mockImplementation(function (this: unknown, ...args: unknown[]) {
    if (calls++ >= after) return Promise.reject(Object.assign(new Error(code), { code }));
    return original.apply(this, args);
  });
}

describe('AtomicFile', () => {
  it('appears only when complete', async () => {
    const dir = await directory({});
    const file = await AtomicFile.create(join(dir, 'a'), 5);
    await file.write(2, Uint8Array.of(3, 4, 5));
    await file.write(0, Uint8Array.of(1, 2));
    expect(await listing(dir)).not.toContain('a');
    await file.commit(false);
    expect([...(await readFile(join(dir, 'a')))]).toEqual([1, 2, 3, 4, 5]);
    expect(await listing(dir)).toEqual(['a']);
  });

  it('goes on where a write was short', async () => {
    const dir = await directory({});
    const file = await AtomicFile.create(join(dir, 'a'), 5);
    const handle = await open(dir, 'r');
    const prototype = Object.getPrototypeOf(handle);
    await handle.close();
    const original = prototype.write;
    vi.spyOn(prototype, 'write').mockImplementation(function (this: unknown, ...args: unknown[]) {
      const [bytes, from, length, at] = args as [Uint8Array, number, number, number];
      return original.call(this, bytes, from, Math.min(2, length), at);
    });
    await file.write(0, Uint8Array.of(1, 2, 3, 4, 5));
    await file.commit(false);
    expect([...(await readFile(join(dir, 'a')))]).toEqual([1, 2, 3, 4, 5]);
  });

  it('leaves alone what came to exist meanwhile, unless told to replace it', async () => {
    const dir = await directory({});
    const first = await AtomicFile.create(join(dir, 'a'), 0);
    await writeFile(join(dir, 'a'), 'theirs');
    await expect(first.commit(false)).rejects.toMatchObject({ code: 'OUTPUT_EXISTS' });
    expect(await readFile(join(dir, 'a'), 'utf8')).toBe('theirs');
    expect(await listing(dir)).toEqual(['a']);
    const second = await AtomicFile.create(join(dir, 'a'), 0);
    await second.commit(true);
    expect(await readFile(join(dir, 'a'), 'utf8')).toBe('');
  });

  it('refuses more bytes than the disk has, before it writes', async () => {
    const dir = await directory({});
    await expect(AtomicFile.create(join(dir, 'a'), 2 ** 53 - 1)).rejects.toMatchObject({
      code: 'WRITE_FAILED',
      message: expect.stringContaining('9007199254740991 bytes'),
    });
    expect(await listing(dir)).toEqual([]);
  });
});

describe('a disk that fills up during a conversion', () => {
  const options = {
    model: 'auto',
    dtype: 'q4_0',
    container: 'cflow',
    scaleSearch: false,
    zeroNonfinite: false,
    overwrite: false,
    verify: false,
    threads: 1,
  } as const;

  it.each([
    ['write', 0, 'ENOSPC'],
    ['write', 7, 'ENOSPC'],
    ['write', 7, 'EIO'],
    ['sync', 0, 'ENOSPC'],
  ] as const)('%s fails after %d calls with %s: WRITE_FAILED, nothing left', async (method, after, code) => {
    const source = await directory(llamaFiles());
    const out = await directory({}, 'out');
    await failing(out, method, after, code);
    const output = join(out, 'm.cflow');
    await expect(convert({ ...options, source, output })).rejects.toMatchObject({
      code: 'WRITE_FAILED',
      message: expect.stringMatching(new RegExp(`m\\.cflow: cannot .*${code}`)),
    });
    expect(await listing(out)).toEqual([]);
  });
});
