/** What an output may not take the place of. */
import { execFileSync } from 'node:child_process';
import { link, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { checkTarget } from '../src/node.js';

let directory: string;
const at = (name: string) => join(directory, name);

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-target-'));
  await writeFile(at('file'), 'x');
  await link(at('file'), at('hard'));
  await symlink(at('file'), at('soft'));
  await symlink(at('nowhere'), at('dangling'));
  await mkdir(at('folder'));
  execFileSync('mkfifo', [at('pipe')]);
});
afterAll(() => rm(directory, { recursive: true }));

it.each([
  ['folder', 'is a directory'],
  ['pipe', 'is no regular file'],
  ['soft', 'is a symbolic link'],
  ['dangling', 'is a symbolic link'],
])('%s, whatever may be replaced', async (name, problem) => {
  await expect(checkTarget(at(name), [], true)).rejects.toMatchObject({
    code: 'OUTPUT_EXISTS',
    message: expect.stringContaining(problem),
    details: { file: at(name) },
  });
});

it('a device', async () => {
  await expect(checkTarget('/dev/null', [], true)).rejects.toMatchObject({ code: 'OUTPUT_EXISTS' });
});

it.each(['file', 'hard', 'soft'])('an input, by the name of %s', async (name) => {
  await expect(checkTarget(at(name), ['elsewhere', at('file')], true)).rejects.toMatchObject({
    code: 'OUTPUT_EXISTS',
    message: expect.stringContaining(`the output is the input ${at('file')}`),
  });
});

it('a file, unless it may be replaced; nothing is in the way of a new one', async () => {
  await expect(checkTarget(at('file'), [], false)).rejects.toMatchObject({ code: 'OUTPUT_EXISTS' });
  await checkTarget(at('file'), [at('pipe')], true);
  await checkTarget(at('new'), [at('file')], false);
  await expect(checkTarget('', [], true)).rejects.toMatchObject({ code: 'USAGE' });
});
