import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { resultOf, warnIfBusy } from '../src/runner/experiment.js';
import { describeMachine } from '../src/runner/machine.js';
import {
  type BenchResult,
  machineSchema,
  metric,
  readResult,
  resultSchema,
  writeResult,
} from '../src/runner/result.js';
import { median, spread, spreadOf } from '../src/runner/statistics.js';
import { MACHINE, resultWith } from './results.js';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-result-test-'));
});
afterEach(() => rm(dir, { recursive: true }));

describe('statistics', () => {
  it.each([
    [[3], 3, 3, 3],
    [[9, 1, 4], 4, 1, 9],
    [[10, 2, 8, 4], 6, 2, 10],
    [[-1, -3], -2, -3, -1],
    // By value, not by text.
    [[100, 9, 20], 20, 9, 100],
  ])('of %j are median %d, min %d, max %d', (values, middle, min, max) => {
    expect(spread(values)).toEqual({ median: middle, min, max });
    expect(metric('x', 's', 'lower', values)).toMatchObject({ runs: values, median: middle, min, max });
  });

  it('leave out what is not there, and the order of what is alone', () => {
    expect(spreadOf([undefined, 5, undefined])).toEqual({ median: 5, min: 5, max: 5 });
    expect(spreadOf([undefined])).toBeUndefined();
    expect(median([1, 2])).toBe(1.5);
  });
});

describe('a result file', () => {
  const good = resultWith([metric('decode', 'tok/s', 'higher', [3, 1, 2])]);

  it('comes back as it was written, in place of an earlier one, and nothing else is left', async () => {
    const file = join(dir, 'r.json');
    await writeResult(file, resultWith([]));
    await writeResult(file, good);
    expect(await readResult(file)).toEqual(good);
    expect(await readdir(dir)).toEqual(['r.json']);
  });

  const [first] = good.metrics;
  const broken: [string, unknown, string][] = [
    [
      'a median that is none',
      { ...good, metrics: [{ ...first, median: 3 }] },
      'metrics.0: median, min and max',
    ],
    ['no runs', { ...good, metrics: [{ ...first, runs: [] }] }, 'metrics.0.runs'],
    ['two of one name', { ...good, metrics: [first, first] }, 'two metrics have the same name'],
    ['a direction that is none', { ...good, metrics: [{ ...first, better: 'up' }] }, 'metrics.0.better'],
    ['a surplus field', { ...good, extra: 1 }, 'extra'],
    ['another version', { ...good, schema: 'cflow-bench/2' }, 'schema'],
    ['a date that is none', { ...good, date: 'yesterday' }, 'date'],
    ['no machine', { ...good, machine: { ...MACHINE, cpu: undefined } }, 'machine.cpu'],
    [
      'a row has the wrong number of cells',
      { ...good, tables: [{ title: 't', columns: ['a', 'b'], rows: [[1]] }] },
      'a row has the wrong number of cells',
    ],
  ];
  it.each(broken)('is refused for %s', async (_, content, message) => {
    const file = join(dir, 'bad.json');
    await writeFile(file, JSON.stringify(content));
    await expect(readResult(file)).rejects.toMatchObject({ code: 'FORMAT_INVALID' });
    await expect(readResult(file)).rejects.toThrowError(message);
  });

  it('is refused where it is no JSON, or is not there', async () => {
    const file = join(dir, 'bad.json');
    await writeFile(file, '{');
    await expect(readResult(file)).rejects.toMatchObject({ code: 'FORMAT_INVALID' });
    await expect(readResult(join(dir, 'none'))).rejects.toMatchObject({ code: 'NOT_READABLE' });
  });

  it('is not written if it breaks its own rules', async () => {
    const file = join(dir, 'r.json');
    await expect(writeResult(file, { ...good, command: '' })).rejects.toThrow();
    expect(await readdir(dir)).toEqual([]);
  });
});

describe('a saved result', () => {
  it('names options once, files without directories, and omits options of the output', async () => {
    const args = {
      _: [],
      $0: 'x',
      model: '/home/who/m.cflow',
      'scale-search': true,
      scaleSearch: true,
      save: 'a',
      json: true,
    };
    const result: BenchResult = await resultOf('decode', args, { metrics: [] }, MACHINE);
    expect(result.options).toEqual({ model: 'm.cflow', scaleSearch: true });
    expect(resultSchema.parse(result)).toEqual(result);
  });

  it('describes this machine by its schema, with limits measured now', async () => {
    const machine = await describeMachine({ directory: dir });
    expect(machineSchema.parse(machine)).toEqual(machine);
    expect(machine.cores.allowed).toBeLessThanOrEqual(machine.cores.online);
    expect(machine.memoryLimit).toBeGreaterThan(2 ** 27);
    expect(machine.disk!.write).toBeGreaterThan(0.001);
    expect(machine.node).toBe(process.version);
    expect(machine.commit ?? 'abcdef123456').toMatch(/^[0-9a-f]{12,40}(-dirty)?$/);
    // What was measured with is gone.
    expect(await readdir(dir)).toEqual([]);
  });
});

describe('a busy machine', () => {
  const said = async (load: number, terminal = true) => {
    const spy = vi
      .spyOn(process.stderr, 'write')
      .mockImplementation(((_: string, done: () => void) => done()) as never);
    await warnIfBusy(load, terminal);
    const texts = spy.mock.calls.map(([text]) => String(text));
    spy.mockRestore();
    return texts;
  };
  it('is said on a terminal, a quiet one not', async () => {
    expect(await said(0)).toEqual([]);
    expect(await said(999, false)).toEqual([]);
    expect(await said(999)).toEqual([
      expect.stringMatching(/^the load average is 999\.0 on \d+ cores: .*\n$/),
    ]);
  });
});

it('results in the repository are results', async () => {
  const folder = new URL('../results/', import.meta.url);
  for (const name of await readdir(folder)) {
    const text = await readFile(new URL(name, folder), 'utf8');
    expect(() => resultSchema.parse(JSON.parse(text)), name).not.toThrow();
    // No folder of anyone's machine.
    expect(text, name).not.toMatch(/\/(home|work|root|tmp|Users)\//);
  }
});
