/** The native code of the experiments: what it includes, and its own test. */
import { execFileSync } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

const NATIVE = fileURLToPath(new URL('../native/', import.meta.url));
const run = (command: string, ...args: string[]): string =>
  execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });

it('includes its own headers, and nothing of the engine', async () => {
  const names = (await readdir(NATIVE)).filter((name) => /\.(h|cpp)$/.test(name));
  const texts = await Promise.all(names.map((name) => readFile(NATIVE + name, 'utf8')));
  const included = texts.flatMap((text) => [...text.matchAll(/^#include "([^"]+)"/gm)].map(([, to]) => to!));
  const others = new Set(included.filter((to) => to.includes('/')).map((to) => to.split('/')[0]!));
  expect([...others].sort()).toEqual(['addon', 'base', 'kernels', 'tiers']);
  expect(included.filter((to) => !to.includes('/') && !names.includes(to))).toEqual([]);
});

it('the simulated caches count what is counted by hand', () => {
  run('make', '-C', NATIVE, 'tests');
  const program = fileURLToPath(new URL('../build/native/locality-test', import.meta.url));
  expect(run(program)).toMatch(/^\d+ checks passed\n$/);
}, 60_000);
