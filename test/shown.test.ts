/**
 * README and guides show commands and what they print. Every `sh` block is run as it stands, in the order of its document;
 * a `text` block below it is what it must print. `bash` blocks need a network, a large file or a certain CPU, and are not run.
 */
import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it, onTestFinished } from 'vitest';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
/** Commands, and the package of each. */
const COMMANDS = {
  'cflow-convert': 'convert',
  'cflow-inspect': 'inspect',
  'cflow-bench': 'bench',
  'cflow-serve': 'serve',
  'cflow-run': 'runtime-native',
  'cflow-chat': 'runtime-native',
};

interface Shown {
  readonly commands: string;
  /** Undefined: what the block prints is not shown. */
  readonly lines: readonly string[] | undefined;
}

/** Installing and building are what .ci/run does. */
const NPM = /^npm .*\n/gm;

const BLOCK = /^```sh\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?/gms;
const shown = (markdown: string): Shown[] =>
  [...markdown.matchAll(BLOCK)].map(([, commands, text]) => ({
    commands: commands!,
    lines: text?.split('\n').filter(Boolean),
  }));

/** Times and speeds are of a machine and a moment. */
const timeless = (line: string) =>
  line
    .replace(/[\d.]+ s\b/g, '# s')
    .replace(/[\d.]+ [kMG]?B\/s/g, '# B/s')
    .replace(/\d+ threads? \(.*?\)/, '# threads');

/** A folder as the clone's root, in which `npx` finds the commands of this build. */
async function clone(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'cflow-shown-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  await symlink(join(ROOT, 'models'), join(folder, 'models'));
  await mkdir(join(folder, 'bin'));
  const cases = Object.entries(COMMANDS).map(
    ([command, name]) =>
      `${command}) exec "${process.execPath}" "${join(ROOT, 'packages', name, 'bin', command)}.js" "$@";;`,
  );
  const script = `#!/bin/sh\ncommand=$1; shift\ncase $command in ${cases.join(' ')} *) exit 127;; esac\n`;
  await writeFile(join(folder, 'bin/npx'), script);
  await chmod(join(folder, 'bin/npx'), 0o755);
  return folder;
}

/** What the commands print: stdout, then stderr, whether they fail or not. */
async function printed(commands: string, cwd: string): Promise<string[]> {
  const env = { ...process.env, PATH: [join(cwd, 'bin'), process.env.PATH].join(delimiter) };
  const run = promisify(execFile)('bash', ['-c', commands], { cwd, env });
  const { stdout, stderr } = await run.catch((error: { stdout: string; stderr: string }) => error);
  return (stdout + stderr).split('\n').filter(Boolean);
}

const guides = (await readdir(join(ROOT, 'docs/guides'))).map((name) => `docs/guides/${name}`);

it.each(['README.md', ...guides])('%s: commands print what is shown', async (path) => {
  const cwd = await clone();
  for (const { commands, lines } of shown(await readFile(join(ROOT, path), 'utf8'))) {
    const got = await printed(commands.replace(NPM, ''), cwd);
    if (lines) expect([commands, ...got.map(timeless)]).toEqual([commands, ...lines.map(timeless)]);
    else expect(got.filter((line) => /error/.test(line))).toEqual([]);
  }
});

it('blocks with output are found', async () => {
  const texts = await Promise.all(guides.map((path) => readFile(join(ROOT, path), 'utf8')));
  expect(texts.flatMap(shown).filter(({ lines }) => lines).length).toBeGreaterThan(5);
});

it('README.md has at most 150 lines', async () => {
  expect((await readFile(join(ROOT, 'README.md'), 'utf8')).trimEnd().split('\n').length).toBeLessThanOrEqual(
    150,
  );
});

it('the quality table of the guide has the columns and the sizes that any text gives', async () => {
  const guide = await readFile(join(ROOT, 'docs/guides/quality.md'), 'utf8');
  const lines = /^```text\n(stories-arch2_4: .*?)\n```$/ms.exec(guide)![1]!.split('\n');
  const cwd = await clone();
  await writeFile(join(cwd, 'held-out.txt'), 'Once upon a time, there was a little girl named Lily.');
  const [, ...got] = await printed('npx cflow-bench quality models/stories-arch2_4 held-out.txt', cwd);
  const namesAndSizes = (line: string) => /^.*? +(MB|\d+\.\d+)(?= )/.exec(line)![0];
  expect(got[0]).toBe(lines[1]);
  expect(got.map(namesAndSizes)).toEqual(lines.slice(1).map(namesAndSizes));
  expect(got).toHaveLength(5);
});
