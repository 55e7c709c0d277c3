import { execFileSync } from 'node:child_process';
import { mkdtemp, open, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { fileSource, MAX_READ_BYTES, openFileSource, type ReadHandle } from '../src/node.js';

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-file-source-'));
});
afterAll(() => rm(dir, { recursive: true }));

/** A handle over 0, 1, 2 … that gives at most `most` bytes a read and fails as told before each. */
function counting(size: number, most: number, failures: string[] = []) {
  const reads: number[] = [];
  const handle: ReadHandle = {
    async read(buffer, offset, length, position) {
      const failure = failures.shift();
      if (failure) throw Object.assign(new Error(failure), { code: failure });
      reads.push(length);
      const bytesRead = Math.max(0, Math.min(length, most, size - position));
      for (let i = 0; i < bytesRead; i++) buffer[offset + i] = (position + i) & 0xff;
      return { bytesRead };
    },
    close: async () => {},
  };
  return { handle, reads };
}

describe('fileSource', () => {
  it('loops over short reads until every byte is there', async () => {
    const { handle, reads } = counting(100, 7);
    const bytes = await fileSource(handle, 'f', 100).read(10, 20);
    expect([...bytes]).toEqual(Array.from({ length: 20 }, (_, i) => 10 + i));
    expect(reads).toEqual([20, 13, 6]);
  });

  it('asks for at most 64 MiB at a time', async () => {
    const reads: number[] = [];
    const handle: ReadHandle = {
      read: async (_buffer, _offset, length) => {
        reads.push(length);
        return { bytesRead: length };
      },
      close: async () => {},
    };
    await fileSource(handle, 'f', 2 ** 40).read(5, 150 * 1024 * 1024);
    expect(reads).toEqual([67_108_864, 67_108_864, 23_068_672]);
  });

  it('repeats a read that a signal interrupted, and gives up on one that always is', async () => {
    const { handle } = counting(10, 10, ['EINTR', 'EINTR']);
    expect([...(await fileSource(handle, 'f', 10).read(8, 2))]).toEqual([8, 9]);
    const broken = counting(10, 10, Array(2_000).fill('EINTR')).handle;
    await expect(fileSource(broken, 'f', 10).read(0, 2)).rejects.toThrow(
      'f: at byte 0: cannot read 2 bytes: EINTR',
    );
  });

  it('names file, offset and errno of a failed read', async () => {
    const { handle } = counting(10, 10, ['EIO']);
    await expect(fileSource(handle, 'f', 10).read(3, 2)).rejects.toMatchObject({
      code: 'NOT_READABLE',
      message: 'f: at byte 3: cannot read 2 bytes: EIO',
    });
  });

  it('says both numbers when the file became shorter', async () => {
    const { handle } = counting(15, 100);
    await expect(fileSource(handle, 'f', 100).read(10, 20)).rejects.toThrow(
      'f: at byte 10: need 20 bytes, have 5 (the file became shorter while it was read)',
    );
  });
});

describe('openFileSource', () => {
  it('reads beyond 2 GiB, and through the 2^31 boundary, from a sparse file', async () => {
    const path = join(dir, 'sparse');
    const end = 2 ** 31 + 10;
    await writeFile(path, '');
    await truncate(path, end);
    const writer = await open(path, 'r+');
    await writer.write(Uint8Array.of(1, 2, 3, 4), 0, 4, 2 ** 31 - 2);
    await writer.close();
    const source = await openFileSource(path);
    expect(source.size).toBe(2_147_483_658);
    expect([...(await source.read(2 ** 31 - 3, 6))]).toEqual([0, 1, 2, 3, 4, 0]);
    const start = 2 ** 31 - 2 - MAX_READ_BYTES;
    expect((await source.read(start, MAX_READ_BYTES + 12)).subarray(-12)).toEqual(
      Uint8Array.of(1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0),
    );
    await source.close();
    await source.close();
  });

  it('refuses a range beyond the end with both numbers', async () => {
    const path = join(dir, 'ten');
    await writeFile(path, '0123456789');
    const source = await openFileSource(path);
    expect(await source.read(10, 0)).toHaveLength(0);
    await expect(source.read(8, 5)).rejects.toMatchObject({
      code: 'NOT_READABLE',
      message: `${path}: at byte 8: need 5 bytes, have 2 (the file is shorter than its contents say; fetch it again)`,
    });
    await expect(source.read(11, 0)).rejects.toThrow('need 0 bytes, have 0');
    await expect(source.read(1, Number.MAX_SAFE_INTEGER)).rejects.toThrow(
      'need 9007199254740991 bytes, have 9',
    );
    await source.close();
  });

  it('names path and errno of what cannot be opened, and refuses a directory', async () => {
    const path = join(dir, 'absent');
    await expect(openFileSource(path)).rejects.toMatchObject({
      code: 'NOT_READABLE',
      message: `${path}: cannot open: ENOENT`,
    });
    await expect(openFileSource(dir)).rejects.toThrow(`${dir}: is a directory (name a file)`);
  });

  it('refuses a pipe at once, though nobody writes to it', async () => {
    const path = join(dir, 'pipe');
    execFileSync('mkfifo', [path]);
    await expect(openFileSource(path)).rejects.toThrow(`${path}: not a regular file (name a file)`);
  });
});
