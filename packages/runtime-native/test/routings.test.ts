/** Routings that are recorded, and cflow-run --trace, which writes them. */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { captured } from '@cflow/test-kit/captured';
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { main } from '../src/cli.js';
import { Model } from '../src/model.js';
import type * as addon from '../src/native/addon.js';
import { readTrace, traceHeader, traceTokens } from '../src/tiers/trace-file.js';
import { goldenPath, loadSafetensors } from './helpers.js';
import { goldenFile, modelBytes } from './model-file.js';

const missing = vi.hoisted(() => ({ problem: '' }));
vi.mock('../src/native/addon.js', async (original) => {
  const real = await original<typeof addon>();
  return { ...real, addonProblem: () => missing.problem || real.addonProblem() };
});

let directory: string;
let experts: string;
let dense: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-routings-'));
  experts = join(directory, 'experts.cflow');
  dense = join(directory, 'dense.cflow');
  await writeFile(experts, (await goldenFile('arch2_4')).bytes);
  await writeFile(dense, (await goldenFile('arch3')).bytes);
});
afterAll(() => rm(directory, { recursive: true }));
beforeEach(() => {
  missing.problem = '';
});

describe('routings', () => {
  it('of a batch that failed are not kept, those before it are', async () => {
    const { config } = await goldenFile('arch2_4', {}, { scaleEmbeddings: true });
    const tensors = loadSafetensors(goldenPath('arch2_4', 'model.safetensors'));
    // A token that no layer can route: eight times its embedding is infinite.
    tensors.get('embed_tokens.weight')!.values.fill(1e38, 7 * config.hiddenDim, 8 * config.hiddenDim);
    const path = join(directory, 'nan.cflow');
    await writeFile(path, await modelBytes(config, tensors));
    await using model = await Model.open(path, { engine: 'native', recordRoutings: true, maxBatch: 2 });
    const failed = model.createSession().prefill([1, 2, 3, 4, 7]);
    await expect(failed).rejects.toMatchObject({ code: 'NONFINITE_WEIGHT' });
    const positions = (routings: ReturnType<Model['takeRoutings']>) =>
      traceTokens(traceHeader(config), routings).map(({ position }) => position);
    expect(positions(model.takeRoutings())).toEqual([0, 1, 2, 3]);
    await model.createSession().prefill([1, 2, 3]);
    expect(positions(model.takeRoutings())).toEqual([0, 1, 2]);
  });
});

describe('cflow-run --trace', () => {
  const run = (file: string, trace: string, ...more: string[]) =>
    captured(main, [
      file,
      '--ids',
      '1,2',
      '--max-tokens',
      '3',
      '--temperature',
      '0',
      '--trace',
      trace,
      ...more,
    ]);

  it('writes every token in place of an earlier file, and leaves nothing beside it', async () => {
    const path = join(directory, 'trace.ndjson');
    await writeFile(path, 'earlier');
    expect(await run(experts, path)).toMatchObject({ code: 0, err: '' });
    const { header, tokens } = await readTrace(path);
    expect(header.layers.length).toBeGreaterThan(1);
    // The last token that comes out is not passed in.
    expect(tokens.map(({ position }) => position)).toEqual([0, 1, 2, 3]);
    expect((await readdir(directory)).filter((name) => name.includes('partial'))).toEqual([]);
  });

  it('leaves the earlier file where the run fails', async () => {
    const path = join(directory, 'kept.ndjson');
    await writeFile(path, 'earlier');
    expect((await run(experts, path, '--max-tokens', '100000')).code).not.toBe(0);
    expect(await readFile(path, 'utf8')).toBe('earlier');
    expect((await readdir(directory)).filter((name) => name.includes('partial'))).toEqual([]);
  });

  it.each([
    ['a model without experts', () => dense, '', 8, 'the model has no experts'],
    [
      'the reference engine in place of the native one',
      () => experts,
      'not built',
      8,
      'not available: not built',
    ],
    ['a folder that is not there', () => experts, '', 11, 'ENOENT'],
  ])('says before the run what is wrong: %s', async (_name, file, problem, code, message) => {
    missing.problem = problem;
    const folder = message === 'ENOENT' ? join(directory, 'nowhere') : directory;
    const path = join(folder, 'refused.ndjson');
    const result = await run(file(), path);
    expect(result).toMatchObject({ code, out: '' });
    expect(result.err).toContain(message);
    await expect(readFile(path)).rejects.toMatchObject({ code: 'ENOENT' });
  });

  it('replaces nothing but files', async () => {
    const result = await run(experts, directory);
    expect(result).toMatchObject({ code: 10, out: '' });
    expect(result.err).toContain('is a directory');
    const before = await readFile(experts);
    const onto = await run(experts, experts);
    expect(onto).toMatchObject({ code: 10, out: '' });
    expect(onto.err).toContain(`the output is the input ${experts}`);
    expect(await readFile(experts)).toEqual(before);
    expect(await run(experts, '')).toMatchObject({ code: 2, out: '' });
  });
});
