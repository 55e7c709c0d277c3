import { appendFile, mkdir, mkdtemp, open, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { convert } from '../src/convert.js';
import { readJournal } from '../src/resume/journal.js';
import { listing, run } from './cli-fixture.js';
import { bf16Files, killInTheMiddle, LARGER, sameBytes } from './resume-fixture.js';

const LEFT = ['.m.cflow.journal', '.m.cflow.partial'];
let root = '';
let source = '';
let whole = '';
let count = 0;

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'cflow-resume-'));
  source = join(root, 'tiny');
  await mkdir(source);
  for (const [name, content] of Object.entries(bf16Files(LARGER, 2))) {
    await writeFile(join(source, name), content instanceof Uint8Array ? content : JSON.stringify(content));
  }
  whole = join(root, 'whole.cflow');
  expect((await run(source, whole)).code).toBe(0);
});
afterAll(() => rm(root, { recursive: true }));

/** An empty directory of its own for each test, and the output in it. */
async function place(): Promise<{ dir: string; output: string }> {
  const dir = join(root, `out${count++}`);
  await mkdir(dir);
  return { dir, output: join(dir, 'm.cflow') };
}

async function killed(output: string): Promise<number> {
  return killInTheMiddle({ source, output, threads: 1 }, 0.3);
}

describe('a conversion that is killed', () => {
  it('three times: --resume gives the bytes of one that was not', async () => {
    const { dir, output } = await place();
    const secured = [0];
    for (const share of [0, 0.3, 0.5]) {
      secured.push(await killInTheMiddle({ source, output, threads: 1, resume: share > 0 }, share));
      expect(secured.at(-1)).toBeGreaterThan(secured.at(-2)!);
    }
    const { code, stdout } = await run(source, output, '--resume');
    expect({ code, stdout }).toMatchObject({ code: 0 });
    expect(await sameBytes(output, whole)).toBe(true);
    expect(await listing(dir)).toEqual(['m.cflow']);
  });

  it('leaves no output; without --resume what it left is removed, and that is said', async () => {
    const { dir, output } = await place();
    expect(await killed(output)).toBeGreaterThan(0);
    expect(await listing(dir)).toEqual(LEFT);
    const { code, stdout } = await run(source, output);
    expect(code).toBe(0);
    expect(stdout).toMatch(/note: removed \d+\.\d\d MB of an interrupted conversion: --resume would have/);
    expect(await sameBytes(output, whole)).toBe(true);
    expect(await listing(dir)).toEqual(['m.cflow']);
  });

  it('is continued only as it was begun: other options, a changed source, changed bytes', async () => {
    const { dir, output } = await place();
    await killed(output);
    const other = await run(source, output, '--resume', '--dtype', 'q8_0');
    expect(other).toMatchObject({ code: 2, stdout: '' });
    expect(other.stderr).toContain('dtype was q4_0, is q8_0');

    const config = join(source, 'config.json');
    await utimes(config, new Date(), new Date());
    const changed = await run(source, output, '--resume');
    expect(changed).toMatchObject({ code: 2, stdout: '' });
    expect(changed.stderr).toMatch(/file config\.json was \d+ bytes, changed \d+, is \d+ bytes, changed/);
    expect(await listing(dir)).toEqual(LEFT);

    const secured = await killed(output);
    const partial = await open(join(dir, '.m.cflow.partial'), 'r+');
    await partial.write(Uint8Array.of(0x5a, 0xa5, 0x5a), 0, 3, Math.floor(secured / 2));
    await partial.close();
    const damaged = await run(source, output, '--resume');
    expect(damaged).toMatchObject({ code: 13, stdout: '' });
    expect(damaged.stderr).toContain('differs from its journal');
  });

  it('with a journal that was cut off in a line goes on from the line before', async () => {
    const { dir, output } = await place();
    const secured = await killed(output);
    await appendFile(join(dir, '.m.cflow.journal'), '{"sums":[[99999999,');
    const { code, stdout } = await run(source, output, '--resume');
    expect(code).toBe(0);
    expect(stdout).toContain(
      `note: continued an interrupted conversion: ${(secured / 1e6).toFixed(2)} MB were already written`,
    );
    expect(await sameBytes(output, whole)).toBe(true);
  });
});

describe('a conversion that is interrupted', () => {
  it('late keeps what it has, and says how to go on', async () => {
    const { dir, output } = await place();
    const abort = new AbortController();
    const onProgress = (done: number, total: number) => done > total / 2 && abort.abort();
    const request = { source, output, threads: 1, signal: abort.signal, onProgress };
    await expect(convert(request)).rejects.toMatchObject({
      code: 'INTERRUPTED',
      message: expect.stringMatching(/^interrupted; \d\d\.\d\d MB are kept .*--resume$/),
    });
    expect(await listing(dir)).toEqual(LEFT);
    const secured = (await readJournal(join(dir, '.m.cflow.journal')))!.secured;
    expect(secured).toBeGreaterThan(19e6);
    const { notes } = await convert({ source, output, resume: true });
    expect(notes).toContainEqual(expect.stringContaining('were already written'));
    expect(await listing(dir)).toEqual(['m.cflow']);
    expect(await sameBytes(output, whole)).toBe(true);
  });

  it('early leaves nothing', async () => {
    const { dir, output } = await place();
    const abort = new AbortController();
    const request = { source, output, threads: 1, signal: abort.signal, onProgress: () => abort.abort() };
    await expect(convert(request)).rejects.toMatchObject({ code: 'INTERRUPTED' });
    expect(await listing(dir)).toEqual([]);
  });
});

it('--resume does not apply to a finished file: exit 2', async () => {
  const { code, stderr } = await run(whole, join(root, 'b.vflow'), '--resume');
  expect(code).toBe(2);
  expect(stderr).toContain('resume applies to a checkpoint');
});
