import { link, lstat, readFile, symlink, unlink, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { CflowError } from '@cflow/format';
import { directory } from '@cflow/test-kit/checkpoint';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { partialNames, ResumableFile } from '../src/resume/file.js';
import { readJournal } from '../src/resume/journal.js';
import { listing } from './cli-fixture.js';

const facts = { bytes: 8, dtype: 'f32' };
const options = { facts, bytes: 8, resume: true, crc32 };

/** Writes and sums, as ModelWriter does. */
async function put(file: ResumableFile, offset: number, bytes: Uint8Array, before = 0): Promise<number> {
  await file.write(offset, bytes);
  return file.crc32(bytes, before);
}

/** What a process leaves that dies after three bytes of eight are safe. */
async function interrupted(dir: string, sums: readonly (readonly [number, number])[]): Promise<void> {
  const dead = { owner: { pid: 2 ** 22 + 1, host: hostname(), started: '1' } };
  const lines = [{ journal: 1, facts }, dead, { sums }].map((line) => `${JSON.stringify(line)}\n`);
  await writeFile(join(dir, '.a.journal'), lines.join(''));
  await writeFile(join(dir, '.a.partial'), Uint8Array.of(1, 2, 3, 99));
}

const SUMS = [
  [2, crc32(Uint8Array.of(1, 2))],
  [3, crc32(Uint8Array.of(3))],
] as const;

describe('ResumableFile', () => {
  it('vouches for regions that ended and for the beginning of the current one', async () => {
    const clock = vi.spyOn(performance, 'now').mockReturnValue(0);
    onTestFinished(() => clock.mockRestore());
    const dir = await directory({});
    const file = await ResumableFile.open(join(dir, 'a'), options);
    await put(file, 0, Uint8Array.of(1, 2));
    await put(file, 2, Uint8Array.of(3));
    // What is written from now on is secured; the next only after as long again.
    clock.mockReturnValue(250);
    const first = await put(file, 3, Uint8Array.of(4));
    await put(file, 4, Uint8Array.of(5), first);
    const journal = () => readJournal(join(dir, '.a.journal'));
    await vi.waitUntil(async () => (await journal())!.secured > 0, { timeout: 60_000 });
    const { sums, secured } = (await journal())!;
    expect([...sums]).toEqual([...SUMS, [4, crc32(Uint8Array.of(4))]]);
    expect(secured).toBe(4);
    await file.leave(new Error('no reason to keep it'));
    expect(await listing(dir)).toEqual([]);
  });

  it('goes on behind what is vouched for, and writes over what is not', async () => {
    const dir = await directory({});
    await interrupted(dir, SUMS);
    const file = await ResumableFile.open(join(dir, 'a'), options);
    expect(file.resumedAt).toBe(3);
    await put(file, 0, await file.readBack(0, 2));
    await put(file, 2, await file.readBack(2, 1));
    await put(file, 3, Uint8Array.of(4, 5, 6, 7, 8));
    await file.commit(false);
    expect([...(await readFile(join(dir, 'a')))]).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
    expect(await listing(dir)).toEqual(['a']);
  });

  it('refuses bytes that differ from the journal', async () => {
    const dir = await directory({});
    await interrupted(dir, [[2, 12345], SUMS[1]]);
    const file = await ResumableFile.open(join(dir, 'a'), options);
    await expect(put(file, 0, await file.readBack(0, 2))).rejects.toMatchObject({ code: 'VERIFY_FAILED' });
    await file.leave(undefined);
  });

  it.each([
    ['other facts', { facts: { ...facts, dtype: 'q4_0' } }],
    ['a fact less', { facts: { bytes: 8 } }],
    ['a fact more', { facts: { ...facts, constructor: 'x' } }],
  ])('%s: USAGE, and nothing is touched', async (_, change) => {
    const dir = await directory({});
    await interrupted(dir, SUMS);
    const opening = ResumableFile.open(join(dir, 'a'), { ...options, ...change });
    await expect(opening).rejects.toMatchObject({ code: 'USAGE' });
    expect(await listing(dir)).toEqual(['.a.journal', '.a.partial']);
  });

  it('is one at a time: OUTPUT_EXISTS names the process', async () => {
    const dir = await directory({});
    const file = await ResumableFile.open(join(dir, 'a'), options);
    const second = ResumableFile.open(join(dir, 'a'), options);
    await expect(second).rejects.toThrow(`process ${process.pid} is writing it`);
    await file.leave(undefined);
    expect(await listing(dir)).toEqual([]);
  });

  it('begins anew where the file is shorter than its journal says, or the journal makes no sense', async () => {
    for (const journal of ['', 'nonsense\n', '{"journal":2}\n', '{"__proto__":{"journal":1},"facts":{}}\n']) {
      const dir = await directory({ '.a.journal': journal, '.a.partial': 'xyz' });
      const file = await ResumableFile.open(join(dir, 'a'), options);
      expect([file.resumedAt, file.discarded]).toEqual([0, 3]);
      await file.leave(undefined);
    }
    const dir = await directory({});
    await interrupted(dir, [...SUMS, [5, 1]]);
    const file = await ResumableFile.open(join(dir, 'a'), options);
    expect([file.resumedAt, file.discarded]).toEqual([0, 4]);
    await file.leave(undefined);
  });

  it('follows no symbolic link, and does not write into a finished output through its second name', async () => {
    for (const plant of [symlink, link]) {
      const dir = await directory({ victim: 'precious' });
      await interrupted(dir, SUMS);
      const { partial } = partialNames(join(dir, 'a'));
      await unlink(partial);
      await plant(join(dir, 'victim'), partial);
      const file = await ResumableFile.open(join(dir, 'a'), options);
      expect(file.resumedAt).toBe(0);
      await put(file, 0, Uint8Array.of(0));
      expect((await lstat(partial)).isFile()).toBe(true);
      await file.leave(undefined);
      expect(await readFile(join(dir, 'victim'), 'utf8')).toBe('precious');
    }
  });

  it('keeps little for nobody: an interruption of a small file leaves nothing', async () => {
    const dir = await directory({});
    const file = await ResumableFile.open(join(dir, 'a'), options);
    await put(file, 0, Uint8Array.of(1));
    const error = new CflowError('INTERRUPTED', 'interrupted');
    expect(await file.leave(error)).toBe(error);
    expect(await listing(dir)).toEqual([]);
  });

  it('has a name that a file system takes, whatever the name of the output', () => {
    const { partial, journal } = partialNames(join('dir', 'ü'.repeat(127)));
    for (const name of [partial, journal]) expect(Buffer.byteLength(name)).toBeLessThanOrEqual(255);
    expect(partialNames('dir/a').partial).toBe(join('dir', '.a.partial'));
  });
});
