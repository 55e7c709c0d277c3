/** What callers without types may pass in: refused with field, value and what is allowed, by both engines. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CflowError } from '@cflow/format';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { Model, type OpenModelOptions } from '../src/model.js';
import { loadAddon } from '../src/native/addon.js';
import { perplexity } from '../src/perplexity.js';
import { Sampler } from '../src/sampling/sampler.js';
import { Session } from '../src/session.js';
import { goldenFile, tokenizerMetadata } from './model-file.js';
import { stubEngine } from './stub-engine.js';

let directory: string;
let path: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-checks-'));
  path = join(directory, 'model.cflow');
  await writeFile(path, (await goldenFile('arch5', { dtype: 'q4_0', tokenizer: tokenizerMetadata() })).bytes);
});
afterAll(() => rm(directory, { recursive: true }));

/** The error of `work`; undefined if there was none. */
async function errorOf(work: () => unknown): Promise<unknown> {
  try {
    await work();
    return undefined;
  } catch (error) {
    return error;
  }
}

async function refused(work: () => unknown, message: string): Promise<void> {
  const error = await errorOf(work);
  expect(error).toBeInstanceOf(CflowError);
  expect(error).toMatchObject({ code: 'USAGE', message });
}

describe('Model.open', () => {
  it.each([
    [{ engine: 'x' }, "engine: 'x' is not one of native, reference"],
    [{ engine: 'toString' }, "engine: 'toString' is not one of native, reference"],
    [{ cache: 'x' }, "cache: 'x' is not one of f16, f32"],
    [{ cache: null }, 'cache: null is not one of f16, f32'],
    [{ weights: 'x' }, "weights: 'x' is not one of auto, mapped, resident, direct"],
    [{ arithmetic: 'int4' }, "arithmetic: 'int4' is not one of q8, f32"],
    [{ transfers: 'x' }, "transfers: 'x' is not one of none, stall, overlap, predict"],
    [{ threads: '2' }, "threads: '2' is not a whole number from 1 to 1024"],
    [{ threads: 0 }, 'threads: 0 is not a whole number from 1 to 1024'],
    [{ maxBatch: 0.5 }, 'maxBatch: 0.5 is not a whole number from 1 to 65536'],
    [{ isa: 5 }, 'isa: 5 is not a text'],
    [{ profile: 'x' }, "profile: 'x' is not true or false"],
    [{ delayAware: 0 }, 'delayAware: 0 is not true or false'],
    [null, 'options: null is not an object'],
  ])('refuses %j', async (options, message) => {
    await refused(() => Model.open(path, options as OpenModelOptions), message);
    if (!options || 'engine' in options) return;
    const reference = { ...options, engine: 'reference' } as OpenModelOptions;
    await refused(() => Model.open(path, reference), message);
  });

  it.each([undefined, null, 5, {}])('refuses %j as a file', async (file) => {
    expect(await errorOf(() => Model.open(file as unknown as string))).toMatchObject({
      code: 'USAGE',
      details: { field: 'file', value: file },
    });
  });
});

describe.each(['native', 'reference'] as const)('a session of the engine %s', (engine) => {
  const whole = 'is not a whole number from 0 to 96';
  it.each([
    [[undefined], `ids[0]: undefined ${whole}`],
    [[5, undefined, 7], `ids[1]: undefined ${whole}`],
    // biome-ignore lint/suspicious/noSparseArray: a hole is what is tested
    [[3, , 3], `ids[1]: undefined ${whole}`],
    [[null], `ids[0]: null ${whole}`],
    [['1'], `ids[0]: '1' ${whole}`],
    [[1, 97], `ids[1]: 97 ${whole}`],
    [BigInt64Array.of(1n), `ids[0]: 1n ${whole}`],
    [undefined, 'ids: undefined is not an array of token ids'],
    [null, 'ids: null is not an array of token ids'],
    ['abc', "ids: 'abc' is not an array of token ids"],
    [{ length: 1, 0: 1 }, "ids: { '0': 1, length: 1 } is not an array of token ids"],
  ])('refuses the ids %s and lives on', async (ids, message) => {
    await using model = await Model.open(path, { engine });
    const session = model.createSession();
    await refused(() => session.prefill(ids as number[]), message);
    if (ids !== undefined) await refused(() => session.generate({ ids: ids as number[] }).next(), message);
    await session.prefill(Int32Array.of(1, 2) as unknown as number[]);
    await refused(() => session.decode(undefined as unknown as number), `ids[0]: undefined ${whole}`);
    expect(session.position).toBe(2);
  });

  it.each([
    ['maxTokens', '3', "maxTokens: '3' is not a whole number above 0"],
    ['temperature', '1', "temperature: '1' is not a number from 0 to 100"],
    ['topK', null, 'topK: null is not a whole number from 0 to 2147483648'],
    ['seed', '7', "seed: '7' is not a whole number from 0 to 4294967295"],
    ['ignoreEos', 'no', "ignoreEos: 'no' is not true or false"],
    ['signal', 'x', "signal: 'x' is not an AbortSignal"],
  ])('refuses a bad %s', async (field, value, message) => {
    await using model = await Model.open(path, { engine });
    const session = model.createSession();
    await refused(() => session.generate({ ids: [1], [field]: value }).next(), message);
    await session.prefill([1]);
  });

  it('refuses bad options of prefill', async () => {
    await using model = await Model.open(path, { engine });
    const session = model.createSession();
    await refused(() => session.prefill([1], { onLogits: 5 as never }), 'onLogits: 5 is not a function');
    await refused(() => session.prefill([1], { signal: {} as never }), 'signal: {} is not an AbortSignal');
  });

  it('hands on what onLogits throws', async () => {
    await using model = await Model.open(path, { engine });
    const session = model.createSession();
    const mine = new TypeError('mine');
    const onLogits = () => {
      throw mine;
    };
    expect(await errorOf(() => session.prefill([1, 2], { onLogits }))).toBe(mine);
    expect(await errorOf(() => session.decode(1))).toMatchObject({ code: 'USAGE', cause: mine });
  });

  it('refuses texts and options of perplexity', async () => {
    await using model = await Model.open(path, { engine });
    await refused(() => perplexity(model, 5 as never), 'text: 5 is not a text');
    await refused(
      () => perplexity(model, 'a', { documents: -1 }),
      'documents: -1 is not a whole number above 0',
    );
    await refused(() => model.tokenizer!.encode(undefined as never), 'text: undefined is not a text');
    await refused(() => model.tokenizer!.decode('x' as never), "ids: 'x' is not an array of token ids");
  });
});

it('what the addon throws at once is typed like what it rejects with', async () => {
  const thrown = Object.assign(new Error('at once'), { code: 'MEMORY' });
  const spy = vi.spyOn(loadAddon()!, 'openEngine').mockImplementation(() => {
    throw thrown;
  });
  const error = await errorOf(() => Model.open(path, { engine: 'native' }));
  spy.mockRestore();
  expect(error).toBeInstanceOf(CflowError);
  expect(error).toMatchObject({ code: 'MEMORY', details: { file: path, cause: thrown } });
});

describe('logits that are not finite', () => {
  const nan = Float32Array.of(0, Number.NaN);
  it.each(['f16', 'f32'] as const)('name --cache f32 if the cache is another: %s', async (cache) => {
    const stats = () => ({ weightBytes: 0, cacheBytes: 0, native: { cache } }) as never;
    const { message } = (await errorOf(() => new Sampler().sample(nan, 2, stats))) as CflowError;
    expect(message).toContain('the logit of token 1 is NaN');
    expect(message.includes('--cache f32')).toBe(cache === 'f16');
  });

  it('are explained by what the session runs on', async () => {
    const { config } = await goldenFile('arch5');
    const engine = stubEngine({
      run: async () => new Float32Array(config.vocabSize).fill(Number.NaN),
      stats: () => ({ weightBytes: 0, cacheBytes: 0, native: { cache: 'f16' } }) as never,
    });
    const next = new Session({ config, engine }).generate({ ids: [1] }).next();
    await expect(next).rejects.toThrowError(/try --cache f32/);
  });
});
