/** Models that are fetched while they run: the same bits as in memory, whatever is fetched, how, when and how often. */
import { chmod, link, mkdtemp, rename, rm, truncate, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TRANSFER_MODES } from '@cflow/format';
import { type ModelShape, makeConfig } from '@cflow/test-kit/models';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { Model, type OpenModelOptions } from '../src/model.js';
import { goldenJson, goldenPath, loadSafetensors, type Trace } from './helpers.js';
import { type FileOptions, goldenFile, modelBytes, quarter, randomTensors } from './model-file.js';
import { modelOpener } from './opened.js';

const ARCHITECTURES = ['arch1', 'arch2_4', 'arch2_4_sync', 'arch3', 'arch4', 'arch5', 'parallel_sqrt2'];
const TRAINED = ['arch1', 'arch2_4', 'arch2_4_sync', 'arch3', 'arch4', 'arch5'].map(
  (arch) => `trained_${arch}`,
);
const ARMS = TRANSFER_MODES.filter((mode) => mode !== 'none');
/** More than any model here needs: what is fetched is said by slots. */
const MEMORY = 8e9;

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-direct-'));
  vi.stubEnv('XDG_CACHE_HOME', directory);
});
afterAll(async () => {
  vi.unstubAllEnvs();
  await rm(directory, { recursive: true });
});

const open = modelOpener({ engine: 'native', threads: 2 });

let files = 0;
async function write(bytes: Uint8Array): Promise<string> {
  const path = join(directory, `${files++}.model`);
  await writeFile(path, bytes);
  return path;
}
const golden = async (arch: string, options: FileOptions = {}) =>
  write((await goldenFile(arch, options)).bytes);
const tokensOf = (arch: string) => (goldenJson(arch, 'trace.json') as Trace).tokens;

async function random(shape: ModelShape): Promise<string> {
  const config = makeConfig(shape);
  return write(await modelBytes(config, randomTensors(config, quarter), { dtype: 'q4_0' }));
}

type Slots = NonNullable<OpenModelOptions['direct']>;
const direct = (slots: Slots, more: OpenModelOptions = {}): OpenModelOptions => ({
  weights: 'direct',
  memory: MEMORY,
  direct: slots,
  ...more,
});

/** The fewest experts and weight streams that a model runs with, as its refusals say. */
async function fewest(path: string): Promise<Slots> {
  const least = async (field: 'expertSlots' | 'streamSlots') => {
    const reason = await open(path, direct({ [field]: 1 })).catch((error) => error);
    if (reason instanceof Model) return 1;
    expect(reason).toMatchObject({ code: 'USAGE', details: { field, value: 1 } });
    return reason.details.limit as number;
  };
  const [expertSlots, streamSlots] = [await least('expertSlots'), await least('streamSlots')];
  return { ...(expertSlots && { expertSlots }), ...(streamSlots && { streamSlots }) };
}

const statsOf = (model: Model) => model.createSession().stats().native!;
const planOf = (model: Model) => statsOf(model).choice.plan!;

/** Logits after each of `ids`, in one call. */
async function logitsOf(model: Model, ids: readonly number[]): Promise<Float32Array[]> {
  const all: Float32Array[] = [];
  await model.createSession().prefill(ids, { onLogits: (_, logits) => all.push(logits.slice()) });
  return all;
}

/** What a model in memory gives in batches of the same length: sums of experts depend on it in their last bits. */
function inMemory(path: string, ids: readonly number[]) {
  const known = new Map<number, Promise<Float32Array[]>>();
  return async (model: Model) => {
    const { maxBatch } = planOf(model);
    if (!known.has(maxBatch)) {
      known.set(maxBatch, logitsOf(await open(path, { weights: 'resident', maxBatch }), ids));
    }
    return known.get(maxBatch)!;
  };
}

/** Every arm with 1, 2 and 3 threads, directly and buffered, in the fewest slots and in more. */
async function expectSameBits(path: string, ids: readonly number[]): Promise<void> {
  const expected = inMemory(path, ids);
  const least = await fewest(path);
  const more = Object.fromEntries(Object.entries(least).map(([name, slots]) => [name, 3 * Number(slots)]));
  for (const transfers of ARMS) {
    for (const threads of [1, 2, 3]) {
      for (const mode of ['auto', 'buffered'] as const) {
        const slots = threads === 3 ? more : least;
        const model = await open(path, direct({ ...slots, mode, block: 4096 }, { transfers, threads }));
        const name = `${transfers}, ${threads} threads, ${mode}, ${JSON.stringify(slots)}`;
        expect(await logitsOf(model, ids), name).toEqual(await expected(model));
        const { weights, tiers } = statsOf(model);
        expect([weights, planOf(model).transfers, tiers.bytesRead > 0], name).toEqual([
          'direct',
          transfers,
          true,
        ]);
        if (mode === 'buffered') expect(tiers.direct).toBe(false);
        await model.close();
      }
    }
  }
}

describe('the bits of memory', () => {
  it.each(ARCHITECTURES.flatMap((arch) => (['cflow', 'vflow'] as const).map((c) => [arch, c] as const)))(
    '%s .%s',
    { timeout: 60_000 },
    async (arch, container) => {
      const path = await golden(arch, { container, dtype: 'q4_0' });
      await expectSameBits(path, tokensOf(arch).slice(0, 12));
    },
  );

  it.each(TRAINED)('%s', { timeout: 60_000 }, async (arch) => {
    await expectSameBits(await golden(arch), tokensOf(arch).slice(0, 12));
  });

  it.each<[string, ModelShape]>([
    ['everything optional', { rich: true, layers: 3 }],
    ['delays', { layers: 5, denseDelay: 1, expertDelay: 2, experts: 6 }],
    ['a head that is the embedding', { layers: 2, ffn: false, tied: true, experts: 5 }],
    ['experts alone', { layers: 3, ffn: false, experts: 9 }],
    ['no experts', { layers: 3, experts: 0 }],
  ])('%s', { timeout: 60_000 }, async (_name, shape) => {
    await expectSameBits(await random(shape), prompt(20));
  });
});

const prompt = (length: number) => Array.from({ length }, (_, i) => (17 * i * i + 5 * i + 3) % 130);

describe('batches and sessions', () => {
  it('a prompt longer than slots allow at once, over several windows', async () => {
    const path = await random({ layers: 4, expertDelay: 1, experts: 8, slidingEvery: 2 });
    const ids = prompt(100);
    const expected = inMemory(path, ids);
    // Two layers under way, two experts a token: so many tokens of a batch.
    for (const [expertSlots, tokens] of [
      [4, 1],
      [8, 2],
      [13, 3],
      [16, 512],
    ] as const) {
      const model = await open(path, direct({ expertSlots }));
      expect(planOf(model)).toMatchObject({ maxBatch: tokens, expertSlots });
      expect(await logitsOf(model, ids)).toEqual(await expected(model));
    }
  });

  it('sessions one after the other, token by token, as if each were alone', async () => {
    const path = await golden('arch2_4', { dtype: 'q4_0' });
    for (const transfers of ARMS) {
      const model = await open(path, direct(await fewest(path), { transfers }));
      const prompts = [1, 2, 3].map((n) => tokensOf('arch2_4').slice(n, n + 8));
      const alone: Float32Array[][] = [];
      for (const ids of prompts) {
        const session = model.createSession();
        const logits = [];
        for (const id of ids) {
          await session.decode(id);
          logits.push(session.logits());
        }
        alone.push(logits);
      }
      const sessions = prompts.map(() => model.createSession());
      for (let i = 0; i < 8; i++) {
        await Promise.all(sessions.map((session, s) => session.decode(prompts[s]![i]!)));
        for (const [s, session] of sessions.entries()) expect(session.logits()).toEqual(alone[s]![i]);
      }
    }
  });

  it('an abort, and closing while it runs, leave the next one right', async () => {
    const path = await random({ layers: 4, experts: 8 });
    const ids = prompt(60);
    const model = await open(path, direct({ expertSlots: 2, block: 4096 }));
    const first = model.createSession();
    await first.prefill(ids);
    const expected = first.logits();
    let aborted = 0;
    for (const pause of [0, 1, 3, 9]) {
      const abort = new AbortController();
      setTimeout(() => abort.abort(), pause);
      const run = model.createSession().prefill(ids, { signal: abort.signal });
      const outcome = await run.then(
        () => '',
        ({ code }) => code,
      );
      expect(['', 'INTERRUPTED']).toContain(outcome);
      if (outcome) aborted++;
      const session = model.createSession();
      await session.prefill(ids);
      expect(session.logits()).toEqual(expected);
    }
    expect(aborted).toBeGreaterThan(0);
    // As long as the context allows: not over before it is closed.
    const running = model.createSession().prefill(prompt(2000));
    const closed = model.close();
    await expect(running).rejects.toMatchObject({ code: 'INTERRUPTED' });
    await closed;
  });
});

describe('predictions', () => {
  it('are made for undelayed experts, some come true, and change what is read, not what comes out', async () => {
    const path = await golden('arch2_4_sync', { dtype: 'q4_0' });
    const model = await open(path, direct({ expertSlots: 8 }, { transfers: 'predict' }));
    await logitsOf(model, tokensOf('arch2_4_sync'));
    const { ahead, hits, predicted, misses } = statsOf(model).tiers;
    expect(ahead).toBeGreaterThan(0);
    expect(predicted).toBeGreaterThan(0);
    expect(predicted).toBeLessThanOrEqual(ahead);
    expect(hits + predicted + misses).toBeGreaterThan(predicted);
    const delayed = await golden('arch2_4', { dtype: 'q4_0' });
    const other = await open(delayed, direct({ expertSlots: 64 }, { transfers: 'predict' }));
    await logitsOf(other, tokensOf('arch2_4'));
    expect(statsOf(other).tiers.ahead).toBe(0);
  });
});

describe('what is refused', () => {
  it.each([
    ['expertSlots', 0],
    ['expertSlots', 1.5],
    ['streamSlots', -1],
    ['block', 5000],
    ['block', 2 ** 31],
    ['depth', 257],
    ['backend', 'aio'],
    ['mode', 'direct'],
    ['halfLife', -1],
    ['halfLife', Number.NaN],
  ])('%s %s', async (field, value) => {
    const path = await golden('arch2_4');
    await expect(open(path, direct({ [field]: value } as Slots))).rejects.toMatchObject({
      code: 'USAGE',
      details: { field, value },
    });
  });

  it('a direct option that is no object', async () => {
    const path = await golden('arch2_4');
    await expect(open(path, { direct: 7 as unknown as Slots })).rejects.toMatchObject({ code: 'USAGE' });
  });

  it.each(['mapped', 'resident'] as const)('a memory for weights that are %s', async (weights) => {
    await expect(open(await golden('arch2_4'), { weights, memory: MEMORY })).rejects.toMatchObject({
      code: 'USAGE',
      details: { field: 'memory', value: MEMORY },
    });
  });

  it('more slots than the memory holds: fewer are the remedy', async () => {
    const path = await golden('arch2_4');
    await expect(open(path, { memory: 1000, direct: { expertSlots: 40 } })).rejects.toMatchObject({
      code: 'MEMORY',
      details: { remedy: expect.stringContaining('fewer slots') },
    });
    await expect(open(path, { memory: 1000 })).rejects.toMatchObject({
      details: { remedy: expect.not.stringContaining('slots') },
    });
  });

  it('experts of a model without', async () => {
    await expect(open(await golden('arch3'), direct({ expertSlots: 9 }))).rejects.toMatchObject({
      code: 'USAGE',
      details: { field: 'expertSlots', limit: 0 },
    });
  });

  it('to fetch what fits; slots that are asked for are fetched into all the same', async () => {
    const path = await golden('arch2_4');
    await expect(open(path, { weights: 'direct', memory: MEMORY })).rejects.toMatchObject({
      code: 'USAGE',
      details: { field: 'weights' },
    });
    expect(statsOf(await open(path, { memory: MEMORY })).weights).toBe('resident');
    const model = await open(path, { memory: MEMORY, direct: { expertSlots: 64 } });
    expect(statsOf(model).weights).toBe('direct');
  });

  it('a budget that is too small: the one that is named works', async () => {
    const path = await golden('arch2_4');
    const reason = await open(path, { memory: 1e6 }).catch((error) => error);
    expect(reason).toMatchObject({ code: 'MEMORY', details: { field: 'memory', value: 1e6 } });
    const { limit, remedy } = reason.details;
    expect(remedy).toContain(`${limit / 2 ** 20} MiB`);
    const model = await open(path, { memory: limit });
    await logitsOf(model, tokensOf('arch2_4'));
  });

  describe.each([
    ['fetched from', direct({ expertSlots: 64 })],
    ['mapped', { weights: 'mapped' }],
  ] as const)('a file that is %s', (_how, options) => {
    it.each([
      ['shorter', (path: string) => truncate(path, 8192)],
      ['without its last bytes', (path: string, size: number) => truncate(path, size - 100)],
      ['written to', (path: string, _size: number, bytes: Uint8Array) => writeFile(path, bytes)],
    ])('and %s than when it was opened', async (_name, change) => {
      const { bytes } = await goldenFile('arch2_4', { dtype: 'q4_0' });
      const path = await write(bytes);
      await utimes(path, 1, 1);
      const model = await open(path, options);
      const [first, ...rest] = tokensOf('arch2_4');
      await model.createSession().prefill([first!]);
      await change(path, bytes.length, bytes);
      for (const ids of [rest, [first!]]) {
        await expect(model.createSession().prefill(ids)).rejects.toMatchObject({ code: 'NOT_READABLE' });
      }
    });
  });

  describe('a file whose time of modification is that of before', () => {
    /** A model that fetches from a file, once it has run; and what it does then. */
    async function running(bytes: Uint8Array) {
      const path = await write(bytes);
      await utimes(path, 1, 1);
      const model = await open(path, direct({ expertSlots: 64 }));
      const ids = tokensOf('arch2_4').slice(0, 4);
      const expected = await logitsOf(model, ids);
      return { path, expected, again: () => logitsOf(model, ids) };
    }

    it('is noticed when other weights of the same size are in it', async () => {
      const { bytes } = await goldenFile('arch2_4', { dtype: 'q4_0' });
      const { path, again } = await running(bytes);
      const tensors = loadSafetensors(goldenPath('arch2_4', 'model.safetensors'));
      tensors.get('layers.0.attn.q_proj.weight')!.values.reverse();
      const { config } = await goldenFile('arch2_4');
      const other = await modelBytes(config, tensors, { dtype: 'q4_0' });
      expect(other.length).toBe(bytes.length);
      await writeFile(path, other);
      await utimes(path, 1, 1);
      for (let i = 0; i < 2; i++) await expect(again()).rejects.toMatchObject({ code: 'NOT_READABLE' });
    });

    it('may have another name, a second one and other permissions', async () => {
      const { bytes } = await goldenFile('arch2_4', { dtype: 'q4_0' });
      const { path, expected, again } = await running(bytes);
      for (const change of [
        () => chmod(path, 0o400),
        () => link(path, `${path}.second`),
        () => rename(path, `${path}.moved`),
        () => rm(`${path}.second`),
        () => rm(`${path}.moved`),
      ]) {
        await change();
        expect(await again()).toEqual(expected);
      }
    });
  });
});
