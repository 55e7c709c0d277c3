/** The README shows what its commands print. Those of `cflow-run` depend on the CPU and have tests of their own. */
import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it, onTestFinished } from 'vitest';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const PACKAGES = { convert: 'cflow-convert', inspect: 'cflow-inspect', bench: 'cflow-bench' };
const OTHERS = /cflow-run|held-out|scorecard|\/dev\/full/;

interface Shown {
  readonly command: string;
  readonly lines: readonly string[];
}

/** Blocks of `    $ command` with the lines below them. */
function shown(markdown: string): Shown[] {
  const blocks = markdown.match(/^ {4}.*(?:\n+ {4}.*)*/gm) ?? [];
  const commands = blocks.flatMap((block) => block.replace(/^ {4}/gm, '').split(/^\$ /m).slice(1));
  return commands.map((text) => {
    const [command = '', ...lines] = text.trimEnd().split('\n');
    return { command, lines: lines.filter(Boolean) };
  });
}

/** Times and speeds are of a machine and a moment. */
const timeless = (line: string) =>
  line.replace(/[\d.]+ (s|MB\/s)\b/g, '# $1').replace(/\d+ threads \(.*?\)/, '# threads');

async function folderWithCommands(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'cflow-readme-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  await symlink(join(ROOT, 'models'), join(folder, 'models'));
  await mkdir(join(folder, 'bin'));
  for (const [name, command] of Object.entries(PACKAGES)) {
    const script = `#!/bin/sh\nexec "${process.execPath}" "${join(ROOT, 'packages', name, 'bin', command)}.js" "$@"\n`;
    await writeFile(join(folder, 'bin', command), script);
    await chmod(join(folder, 'bin', command), 0o755);
  }
  return folder;
}

const readme = async () => shown(await readFile(join(ROOT, 'README.md'), 'utf8'));

/** Lines that a command prints, whether it fails or not. */
async function printedBy(command: string, cwd: string): Promise<string[]> {
  const env = { ...process.env, PATH: [join(cwd, 'bin'), process.env.PATH].join(delimiter) };
  const run = promisify(execFile)('bash', ['-c', command], { cwd, env });
  const { stdout, stderr } = await run.catch((error: { stdout: string; stderr: string }) => error);
  return (stdout + stderr).split('\n').filter(Boolean);
}

it('commands print what the README says', async () => {
  const blocks = (await readme()).filter(({ command }) => !OTHERS.test(command));
  expect(blocks.length).toBeGreaterThan(10);
  const cwd = await folderWithCommands();
  for (const { command, lines } of blocks) {
    const printed = await printedBy(command, cwd);
    expect([command, ...printed.map(timeless)]).toEqual([command, ...lines.map(timeless)]);
  }
});

it('the table of quality, of texts that are not here, has the columns and the sizes that any texts give', async () => {
  const { command, lines } = (await readme()).find((block) => block.command.includes('held-out'))!;
  const cwd = await folderWithCommands();
  await writeFile(join(cwd, 'held-out.txt'), 'Once upon a time, there was a little girl named Lily.');
  const [, ...printed] = await printedBy(command, cwd);
  const namesAndSizes = (line: string) => /^.*? +(MB|\d+\.\d)(?= )/.exec(line)![0];
  expect(printed[0]).toBe(lines[1]);
  expect(printed.map(namesAndSizes)).toEqual(lines.slice(1).map(namesAndSizes));
  expect(printed).toHaveLength(5);
});

it('the lines of the scorecard are lines of the one that is committed, up to what a machine measures', async () => {
  const { lines } = (await readme()).find((block) => block.command.includes('scorecard'))!;
  const committed = (await readFile(join(ROOT, 'docs/benchmarks.md'), 'utf8')).split('\n');
  const claims = lines.filter((line) => /^\d+ \D/.test(line) && line.includes(': '));
  expect(claims.length).toBeGreaterThan(1);
  for (const line of claims) {
    const [, claim, status] = /^(.*): ([A-Z ]+)$/.exec(line)!;
    const row = committed.find((text) => text.startsWith(`| ${claim} |`));
    expect(row?.toLowerCase()).toContain(status!.toLowerCase());
    const theirs = lines[lines.indexOf(line) + 1]!.replace('  theirs  ', '');
    expect(row).toContain(`| ${theirs} |`);
  }
});
