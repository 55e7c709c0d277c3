/** What was meant by a command line of cflow-run, and the line to type. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { captured } from '@cflow/test-kit/captured';
import { expect, it, onTestFinished } from 'vitest';
import { main } from '../src/cli.js';
import { goldenFile } from './model-file.js';

async function directory(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'cflow-misplaced-'));
  onTestFinished(() => rm(dir, { recursive: true }));
  return dir;
}

const run = (...argv: string[]) => captured(main, argv);

it.each<[string[], string]>([
  [['Once upon a time', 'm.cflow'], 'cflow-run m.cflow --prompt "Once upon a time"'],
  [['m.cflow', 'Once upon'], 'cflow-run m.cflow --prompt "Once upon"'],
  [['--prompt', 'm.cflow', 'say "hi" for $5'], 'cflow-run m.cflow --prompt "say \\"hi\\" for \\$5"'],
  [['m.cflow', 'x'.repeat(100)], `cflow-run m.cflow --prompt ${'x'.repeat(57)}...`],
])('%j', async (argv, line) => {
  const { code, out, err } = await run(...argv);
  expect([code, out]).toEqual([2, '']);
  expect(err).toContain(line);
});

it('a directory and a repository must be converted first', async () => {
  const dir = await directory();
  await writeFile(join(dir, 'config.json'), '{}');
  const checkpoint = await run(dir, '--prompt', 'x');
  expect([checkpoint.code, checkpoint.err.includes(`cflow-convert ${dir} `)]).toEqual([3, true]);
  const repository = await run('acme/tiny', '--prompt', 'x');
  expect([repository.code, repository.err.includes('cflow-convert hf:acme/tiny tiny.cflow')]).toEqual([
    3,
    true,
  ]);
  // A path that is merely wrong gets no such advice.
  expect((await run('acme/tiny.cflow', '--prompt', 'x')).err).not.toContain('cflow-convert');
});

it.each<[string[], number, RegExp]>([
  [['--memory', '2'], 2, /--memory: 2 without a unit is 2 bytes \(write 2GiB or 2GB\)/],
  [['--context', '100000000'], 12, /--context: 100000000 positions, the model has 64 \(ask for 64 at most\)/],
  [['--context', '65', '--weights', 'mapped'], 12, /--context: 65 positions, the model has 64/],
  [['--context', '64', '--memory', '8GB'], 0, /^$/],
])('%j', async (options, exit, message) => {
  const model = join(await directory(), 'model.cflow');
  await writeFile(model, (await goldenFile('arch2_4', { dtype: 'q4_0' })).bytes);
  const { code, err } = await run(model, '--ids', '5', '--max-tokens', '1', ...options);
  expect(code).toBe(exit);
  expect(err).toMatch(message);
});

it('help begins with the model and the prompt, and ends with an example', async () => {
  const { out } = await run('--help');
  const titles = [...out.matchAll(/^(\w[^\n]*):$/gm)].map(([, title]) => title);
  expect(titles).toEqual([
    'Positionals',
    'Prompt',
    'Options',
    'Weights offloaded to disk',
    'Exit codes',
    'Example',
  ]);
  expect(out).toMatch(/\n {2}file {2}[\s\S]*\n {6}--prompt [\s\S]*--ids[\s\S]*\nOptions:/);
  expect(out).not.toContain('more');
  expect(out.endsWith('Example:\n  cflow-run model.cflow --prompt "Once upon a time"\n')).toBe(true);
});
