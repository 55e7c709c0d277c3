/** Results of others: texts that steer terminals, break pictures or bear names that objects have, and too many of them. */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { captured } from '@cflow/test-kit/captured';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { main } from '../src/cli.js';
import { metric, readResult } from '../src/runner/result.js';
import { resultWith } from './results.js';

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-hostile-test-'));
});
afterAll(() => rm(dir, { recursive: true }));

async function write(name: string, metrics: readonly string[], unit = 's'): Promise<string> {
  const path = join(dir, name);
  const result = resultWith(
    metrics.map((each) => metric(each, unit, 'lower', [1, 2])),
    { options: { '\u001b[2J': '\u009b31m' } },
  );
  await writeFile(path, JSON.stringify(result));
  return path;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for.
const CONTROL = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202e\ufffe\uffff]/;

const NAMES = [
  '\u001b[31mred: x',
  'nul\u0000: x',
  'turned\u202e: x',
  'half\ud800: x',
  'none\uffff: x',
  '\u009b31m: x',
  'line\nline: x',
  '__proto__: x',
  'toString: x',
  'constructor: __proto__',
  '__proto__',
  'hasOwnProperty',
];

it.each(NAMES.map((name) => [JSON.stringify(name), name]))(
  '%s is drawn, printed, and harms nothing',
  async (_, name) => {
    const file = await write('__proto__.json', [name, 'z: x'], name);
    const [before, after] = [Object.keys(Object.prototype), join(dir, 'charts')];
    const drawn = await captured(main, [
      'report',
      file,
      '--svg',
      after,
      '--png',
      after,
      '--output',
      join(dir, 'x.html'),
    ]);
    expect([drawn.code, drawn.err]).toEqual([0, '']);
    for (const svg of (await readdir(after)).filter((one) => one.endsWith('.svg'))) {
      const text = await readFile(join(after, svg), 'utf8');
      expect(text).not.toMatch(CONTROL);
      // An attribute without a value, or one that an object became.
      expect(text).not.toMatch(/<\w+(?: [\w:-]+="[^"]*")* [\w:-]+[ >]|\[object/);
    }
    const shown = {};
    for (const key in shown) expect(key).toBe('nothing is inherited by every object');
    expect(Object.keys(Object.prototype)).toEqual(before);
    const { code, out } = await captured(main, ['compare', file, file]);
    expect(code).toBe(0);
    expect(out).not.toMatch(CONTROL);
    expect(out.trimEnd().split('\n')).toHaveLength(4);
    await rm(after, { recursive: true });
  },
);

it('keeps the visible of a name, and the number of its figures', async () => {
  const { metrics, options } = await readResult(await write('a.json', NAMES));
  expect(metrics).toHaveLength(NAMES.length);
  expect(metrics[0]!.name).toBe('\\u001b[31mred: x');
  expect(options).toEqual({ '\\u001b[2J': '\\u009b31m' });
});

it('what is nested without end is no result', async () => {
  const path = join(dir, 'deep.json');
  await writeFile(path, '['.repeat(200_000) + ']'.repeat(200_000));
  await expect(readResult(path)).rejects.toMatchObject({ code: 'FORMAT_INVALID' });
});

it('a report takes a limited number of figures, in little time', { timeout: 30_000 }, async () => {
  const many = (count: number) => Array.from({ length: count }, (_, i) => `row ${i}: x`);
  const most = await write('most.json', many(5000));
  expect((await captured(main, ['report', most, '--output', join(dir, 'most.html')])).code).toBe(0);
  const { code, err } = await captured(main, ['report', await write('more.json', many(5001)), '--svg', dir]);
  expect([code, err]).toEqual([12, expect.stringContaining('5001 metrics, limit 5000 per report')]);
});
