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
const OTHERS = /cflow-run|held-out|\/dev\/full/;

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

it('commands print what the README says', async () => {
  const blocks = shown(await readFile(join(ROOT, 'README.md'), 'utf8')).filter(
    ({ command }) => !OTHERS.test(command),
  );
  expect(blocks.length).toBeGreaterThan(10);
  const cwd = await folderWithCommands();
  const env = { ...process.env, PATH: [join(cwd, 'bin'), process.env.PATH].join(delimiter) };
  for (const { command, lines } of blocks) {
    const run = promisify(execFile)('bash', ['-c', command], { cwd, env });
    const { stdout, stderr } = await run.catch((error: { stdout: string; stderr: string }) => error);
    const printed = (stdout + stderr).split('\n').filter(Boolean);
    expect([command, ...printed.map(timeless)]).toEqual([command, ...lines.map(timeless)]);
  }
});
