/** The line that the help of every command ends with is one that the command takes. */
import { captured } from '@cflow/test-kit/captured';
import { expect, it } from 'vitest';
import { main } from '../src/cli.js';
import { EXAMPLES } from '../src/examples.js';

it.each(Object.entries(EXAMPLES))('%s', async (name, line) => {
  const { out } = await captured(main, [name, '--help']);
  expect(out.endsWith(`\nExample:\n  ${line}\n`)).toBe(true);
  const [program, command, ...rest] = line.split(' ');
  expect([program, command]).toEqual(['cflow-bench', name]);
  const options = rest.filter((word) => word.startsWith('--'));
  for (const option of options) expect(out).toContain(`${option} `);
  // The usage has a place for every other word but the values of options.
  const words = rest.filter((word, i) => !word.startsWith('--') && !rest[i - 1]?.startsWith('--'));
  const usage = out.split('\n', 1)[0]!;
  for (const place of usage.match(/<[^>]+>/g) ?? []) expect(words.shift(), place).toBeDefined();
});

it('ends the help of cflow-bench itself', async () => {
  const { out } = await captured(main, ['--help']);
  expect(out.endsWith('\nExample:\n  cflow-bench decode model.cflow --threads 4 --runs 5\n')).toBe(true);
});

it('suggests the option of a command that is misspelt', async () => {
  const { code, err } = await captured(main, ['decode', 'm.cflow', '--thread', '3']);
  expect([code, err.includes('did you mean --threads?')]).toEqual([2, true]);
});
