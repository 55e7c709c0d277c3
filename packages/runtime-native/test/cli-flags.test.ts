/** What cflow-run says about its flags: by their own names, and when they have no effect. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { captured } from '@cflow/test-kit/captured';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { main } from '../src/cli.js';
import { goldenFile } from './model-file.js';

let directory: string;
let model: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-flags-'));
  model = join(directory, 'model.cflow');
  await writeFile(model, (await goldenFile('arch2_4', { dtype: 'q4_0' })).bytes);
});
afterAll(() => rm(directory, { recursive: true }));

const run = (...args: string[]) =>
  captured(main, [model, '--ids', '5,6', '--max-tokens', '2', '--temperature', '0', ...args]);

describe('an error of the library', () => {
  it.each([
    [2, '--threads', '5000'],
    [2, '--context', '0.5'],
    [2, '--top-k', '-1'],
    [2, '--top-k', 'many'],
    [2, '--top-p', '2'],
    [2, '--temperature', '-1'],
    [2, '--seed', '-1'],
    [12, '--max-tokens', '500'],
    [2, '--expert-slots', '1'],
    [2, '--expert-slots', '0'],
    [2, '--stream-slots', '1.5'],
    [2, '--half-life', '-1'],
    [2, '--io-block', '5000'],
    [2, '--io-depth', '0'],
    [14, '--memory', '1MB'],
    [14, '--cache-memory', '4096'],
    [11, '--spill-directory', '/dev/null'],
  ])('exit %i, names %s, for %s', async (exit, flag, value) => {
    const { code, out, err } = await run(flag, value);
    expect([code, out]).toEqual([exit, '']);
    expect(err).toMatch(new RegExp(`^cflow-run: error: ${flag}: [^\n]+\n$`));
  });

  it('names --weights where there is nothing to fetch', async () => {
    const { code, err } = await run('--weights', 'direct', '--memory', '8GB');
    expect([code, err]).toEqual([2, expect.stringMatching(/^cflow-run: error: --weights: everything fits/)]);
    const mapped = await run('--weights', 'mapped', '--memory', '8GB');
    expect([mapped.code, mapped.err]).toEqual([
      2,
      expect.stringMatching(/^cflow-run: error: --memory: cannot limit/),
    ]);
  });

  it('names no flag for ids, which --prompt may have given', async () => {
    const { err } = await captured(main, [model, '--ids', '97']);
    expect(err).toMatch(/^cflow-run: error: ids\[0\]: 97/);
  });
});

describe('flags of what is fetched', () => {
  const FLAGS = [
    ['--transfers', 'stall'],
    ['--half-life', '3'],
    ['--io-block', '1MiB'],
    ['--io-depth', '2'],
    ['--io-backend', 'threads'],
    ['--io-mode', 'buffered'],
  ];
  const note = (flags: string) => `cflow-run: note: no effect of ${flags}: no weights are offloaded\n`;

  it('have no effect where everything fits, which one note says', async () => {
    const { code, err } = await run('--memory', '8GB', ...FLAGS.flat());
    expect([code, err]).toEqual([0, note(FLAGS.map(([flag]) => flag).join(', '))]);
  });

  it.each(['mapped', 'resident'])('nor with weights that are %s, slots included', async (weights) => {
    const slots = ['--expert-slots', '8', '--stream-slots', '9'];
    const { code, err } = await run('--weights', weights, ...slots, '--explain');
    expect([code, err.split('\n').slice(0, 2)]).toEqual([
      0,
      [note('--expert-slots, --stream-slots').trimEnd(), `weights     ${weights} (as asked)`],
    ]);
  });

  it('have one where something is fetched, and nothing is said then; nor without them', async () => {
    expect((await run('--memory', '8GB', '--expert-slots', '8', ...FLAGS.flat())).err).toBe('');
    expect((await run('--memory', '8GB')).err).toBe('');
  });
});
