/** Builds the native test of the disk queue and runs it; the queue as the addon shows it. Needs make and a C++20 compiler. */
import { execFileSync } from 'node:child_process';
import { mkdtemp, open, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Addon, type DiskMeasurement, loadAddon } from '../src/native/addon.js';

const native = fileURLToPath(new URL('../native/', import.meta.url));
const build = fileURLToPath(new URL('../build/native', import.meta.url));
const binary = join(build, 'io-test');

const run = (command: string, ...args: string[]): string =>
  execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], timeout: 240_000 });

describe('the disk queue', () => {
  it('reads and writes the right bytes, whatever goes wrong', { timeout: 300_000 }, () => {
    run('make', '-C', native, '../build/native/io-test');
    const [, checks] = /^io-test: (\d+) checks\n$/.exec(run(binary)) ?? [];
    expect(Number(checks)).toBeGreaterThan(10_000);
  });
});

describe('diskBandwidth', () => {
  const addon = loadAddon() as Addon;
  const SIZE = 1 << 20;
  const OPTIONS: DiskMeasurement = {
    block: 1 << 16,
    depth: 2,
    milliseconds: 20,
    backend: 'auto',
    mode: 'auto',
  };
  let directory: string;
  let file: Awaited<ReturnType<typeof open>>;

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'cflow-io-'));
    await writeFile(join(directory, 'bytes'), new Uint8Array(SIZE));
    file = await open(join(directory, 'bytes'));
  });
  afterAll(async () => {
    await file.close();
    await rm(directory, { recursive: true });
  });

  it('counts whole blocks and says how it read', async () => {
    const options = { ...OPTIONS, backend: 'threads', mode: 'buffered' } as const;
    const { bytes, seconds, ...how } = await addon.diskBandwidth(file.fd, SIZE, options);
    expect(bytes).toBeGreaterThan(0);
    expect(bytes % OPTIONS.block).toBe(0);
    expect(seconds).toBeGreaterThanOrEqual(0.02);
    expect(how).toMatchObject({ direct: false, uring: false });
    expect(how.reason).toMatch(/^direct I\/O: .*; io_uring: /);
  });

  it('has a reason exactly if it did not read in the fastest way', async () => {
    const { direct, uring, reason } = await addon.diskBandwidth(file.fd, SIZE, OPTIONS);
    expect(reason === '').toBe(direct && uring);
  });

  it.each([
    ['block', 0],
    ['block', 1.5],
    ['depth', 257],
    ['milliseconds', Number.NaN],
    ['backend', 'aio'],
    ['mode', 'direct'],
  ])('refuses %s %s', (name, value) => {
    const options = { ...OPTIONS, [name]: value } as DiskMeasurement;
    expect(() => addon.diskBandwidth(file.fd, SIZE, options)).toThrow(
      expect.objectContaining({ code: 'USAGE' }),
    );
  });

  it.each([
    ['a file shorter than a block', OPTIONS.block - 1, OPTIONS.block, 'LIMIT_EXCEEDED'],
    ['blocks that are no multiple of a page', SIZE, 5000, 'LIMIT_EXCEEDED'],
    ['an end before it was expected', 1 << 30, OPTIONS.block, 'NOT_READABLE'],
  ])('rejects %s', async (_, size, block, code) => {
    await expect(addon.diskBandwidth(file.fd, size, { ...OPTIONS, block })).rejects.toMatchObject({ code });
  });

  it('rejects ragged blocks', async () => {
    await expect(addon.diskBandwidth(file.fd, SIZE, { ...OPTIONS, block: 5000 })).rejects.toMatchObject({
      code: 'LIMIT_EXCEEDED',
      message: 'a disk queue has blocks of a multiple of 4096 bytes',
    });
  });
});
