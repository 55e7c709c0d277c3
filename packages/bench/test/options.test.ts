/** Options: the same name means the same in every command. */
import { threadBudget } from '@cflow/runtime-native';
import { captured } from '@cflow/test-kit/captured';
import { describe, expect, it } from 'vitest';
import { main as run } from '../../runtime-native/src/cli.js';
import { main } from '../src/cli.js';
import { blockOf, ioOf, threadCounts, threadsOf } from '../src/runner/options.js';

/** Every option of a help text with its type: `--runs … [number]`. */
function typesOf(help: string): [string, string][] {
  const text = help.slice(help.indexOf('Options:')).replace(/\n {6,}(?![ -])/g, ' ');
  const found = text.matchAll(/^ +(?:-\w, )?--([a-z0-9-]+) .*?\[(boolean|number|string|array|choices)\b/gm);
  return [...found].map(([, name, type]) => [name!, type!]);
}

const helpOf = async (...argv: string[]) => (await captured(main, [...argv, '--help'])).out;

/** Commands that take several of what others take one of. */
const SEVERAL = { memory: ['array', 'string'] } as Record<string, string[]>;

it('options of one name have one type in all commands, and in cflow-run', async () => {
  const commands = [...(await helpOf()).matchAll(/^ {2}cflow-bench (\S+).* {2,}\S/gm)].map(
    ([, name]) => name!,
  );
  expect(commands).toHaveLength(17);
  const types = new Map<string, Set<string>>();
  const note = (help: string) => {
    for (const [name, type] of typesOf(help)) types.set(name, (types.get(name) ?? new Set()).add(type));
  };
  for (const command of commands) note(await helpOf(command));
  note((await captured(run, ['--help'])).out);
  expect([...(types.get('io-block') ?? [])]).toEqual(['string']);
  expect([...(types.get('threads') ?? [])]).toEqual(['number']);
  for (const [name, found] of types)
    expect([name, [...found].sort()]).toEqual([name, SEVERAL[name] ?? [...found].slice(0, 1)]);
});

describe('sizes of reads', () => {
  it.each([
    ['4096', 4096],
    ['64KiB', 65_536],
    ['1MiB', 1_048_576],
    ['1GiB', 1_073_741_824],
  ])('%s', (text, bytes) => {
    expect(blockOf('io-block', text)).toBe(bytes);
  });

  it.each(['4097', '1KiB', '2GiB', '1MB', '0', 'much'])('refuses %s', (text) => {
    expect(() => blockOf('io-block', text)).toThrowError(expect.objectContaining({ code: 'USAGE' }));
    expect(() => blockOf('io-block', text)).toThrowError('--io-block');
  });

  it('are the engine’s in all else', () => {
    expect(ioOf({ 'io-block': '8KiB', 'io-depth': 2 })).toEqual({
      block: 8192,
      depth: 2,
      backend: 'auto',
      mode: 'auto',
    });
    expect(() => ioOf({ 'io-block': '8KiB', 'io-depth': 257 })).toThrowError('--io-depth is 257');
  });
});

it('threads are as asked, or the CPUs allowed', async () => {
  const { threads } = await threadBudget();
  expect(await threadsOf(undefined)).toBe(threads);
  expect(await threadsOf(3)).toBe(3);
  await expect(threadsOf(0)).rejects.toMatchObject({ code: 'USAGE' });
  expect(await threadCounts(undefined)).toEqual([...new Set([1, threads])]);
  expect(await threadCounts([2, 5, 2])).toEqual([2, 5]);
});
