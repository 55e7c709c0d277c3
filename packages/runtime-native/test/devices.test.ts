/** What memory and disk can do, measured once: an addon that is made up says what was measured. */
import { mkdir, mkdtemp, open, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Addon, IoChoice } from '../src/native/addon.js';
import { bandwidths } from '../src/tiers/devices.js';

describe('bandwidths', () => {
  const IO: IoChoice = { block: 1 << 20, depth: 4, backend: 'auto', mode: 'auto' };
  let directory: string;
  let handle: Awaited<ReturnType<typeof open>>;
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'cflow-tiers-'));
    handle = await open(join(directory, 'model'), 'w+');
  });
  afterAll(async () => {
    await handle.close();
    await rm(directory, { recursive: true });
  });

  let home: string;
  let homes = 0;
  beforeEach(() => {
    home = join(directory, `cache${homes++}`);
    vi.stubEnv('XDG_CACHE_HOME', home);
  });
  afterEach(() => {
    vi.unstubAllEnvs();
  });

  const readBandwidth = vi.fn(async () => Float64Array.of(1, 30, 2));
  /** Twice 50 bytes a second, and 80 between. */
  const diskBandwidth = vi.fn(async () => ({
    bytes: 100,
    seconds: diskBandwidth.mock.calls.length === 2 ? 1.25 : 2,
  }));
  /** Rates, and how often memory and disk were measured for them. */
  async function measure(threads = 2, io = IO, size = 1 << 24, room = 2 ** 30) {
    vi.clearAllMocks();
    const addon = { readBandwidth, diskBandwidth } as unknown as Addon;
    const rates = await bandwidths(addon, { name: 'model', fd: handle.fd, size }, { threads, io, room });
    return [rates, readBandwidth.mock.calls.length, diskBandwidth.mock.calls.length];
  }
  const RATES = { memory: 30e9, disk: 80 };
  const RUNS = 4;
  const path = () => join(home, 'cflow', 'bandwidths.json');
  async function put(text: string) {
    await mkdir(join(home, 'cflow'), { recursive: true });
    await writeFile(path(), text);
  }

  it('are measured once a device, number of threads and way to read', async () => {
    expect(await measure()).toEqual([RATES, 1, RUNS]);
    expect(await measure()).toEqual([RATES, 0, 0]);
    expect(await measure(3)).toEqual([RATES, 1, 0]);
    expect(await measure(3, { ...IO, depth: 8 })).toEqual([RATES, 0, RUNS]);
    expect(Object.values(JSON.parse(await readFile(path(), 'utf8')))).toEqual([30e9, 80, 30e9, 80]);
  });

  it.each(['', '{', 'null', '3', '[1, 2]', '"text"'])('a cache file of %j is none', async (text) => {
    await put(text);
    expect(await measure()).toEqual([RATES, 1, RUNS]);
    expect(await measure()).toEqual([RATES, 0, 0]);
  });

  it.each([0, -1, '"9"', null])('a rate of %s in it is measured again', async (rate) => {
    await measure();
    const kept = Object.keys(JSON.parse(await readFile(path(), 'utf8')));
    await put(`{${kept.map((key) => `${JSON.stringify(key)}: ${rate}`).join()}}`);
    expect(await measure()).toEqual([RATES, 1, RUNS]);
  });

  it('are measured again where they cannot be kept', async () => {
    // A folder below a file can be made by nobody, root included.
    await writeFile(home, '');
    expect(await measure()).toEqual([RATES, 1, RUNS]);
    expect(await measure()).toEqual([RATES, 1, RUNS]);
  });

  it('take no more memory than there is room for', async () => {
    await measure(2, IO, 1 << 24, 100 * 2 ** 20);
    expect(readBandwidth).toHaveBeenCalledWith(64 * 2 ** 20, 2, 5);
    await measure();
    expect(readBandwidth).toHaveBeenCalledWith(256 * 2 ** 20, 2, 5);
  });

  it.each([
    [2 ** 30, 16 * 2 ** 20],
    [10 * 2 ** 20, 2.5 * 2 ** 20],
    [4096, 4096],
  ])('blocks of four at once take no more than 64 MiB, and no more than %d', async (room, block) => {
    await measure(2, { ...IO, block: 2 ** 30 }, 2 ** 33, room);
    expect(diskBandwidth).toHaveBeenCalledWith(handle.fd, 2 ** 33, expect.objectContaining({ block }));
  });

  it('blocks are no longer than the file', async () => {
    await measure(2, IO, 10_000);
    expect(diskBandwidth).toHaveBeenCalledWith(handle.fd, 10_000, expect.objectContaining({ block: 8192 }));
  });
});
