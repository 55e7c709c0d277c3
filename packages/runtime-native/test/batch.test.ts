/** Batches of several sequences: each gives the bits that it gives alone, whatever the others do or suffer. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openModel, parseModelConfig } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { makeConfig } from '@cflow/test-kit/models';
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { Engine, EngineSession } from '../src/engine.js';
import { ENGINES, type OpenModelOptions } from '../src/model.js';
import { modelBytes, quarter, randomTensors } from './model-file.js';
import { MODELS, WAYS } from './sequence-models.js';
import { LONG, SLOWLY, slowModel } from './slow-model.js';

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-batch-'));
});
afterAll(() => rm(directory, { recursive: true }));

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function engineOf(bytes: Uint8Array, { engine, ...options }: OpenModelOptions): Promise<Engine> {
  const path = join(directory, 'model.cflow');
  await writeFile(path, bytes);
  const source = await openFileSource(path);
  closing.push(() => source.close());
  const opened = await ENGINES[engine ?? 'native'](source, await openModel(source), options);
  closing.push(() => opened.close());
  return opened;
}

/** Logits after each of the pieces, of a session alone. */
async function alone(engine: Engine, pieces: readonly (readonly number[])[]): Promise<Float32Array[]> {
  const session = engine.createSession();
  const all = [];
  for (const piece of pieces) all.push((await session.run(piece)).slice());
  await session.close();
  return all;
}

const ids = (maxLength: number) => fc.array(fc.nat(90), { minLength: 1, maxLength });
/** Who is in a step, and with what: a token of decoding, or a piece of a prompt. */
const step = fc.uniqueArray(
  fc.record({ who: fc.nat(4), ids: fc.oneof(ids(1), ids(14)), logits: fc.boolean() }),
  { minLength: 1, maxLength: 5, selector: ({ who }) => who },
);

const ALL_MODELS = {
  ...MODELS,
  // More experts a token than two, whose sum depends on its order.
  experts: (options: object) => {
    const config = makeConfig({ layers: 3, experts: 9, expertDelay: 1 });
    const layers = config.layers.map((layer) => ({ ...layer, experts: { ...layer.experts!, topK: 5 } }));
    const changed = parseModelConfig({ ...config, layers });
    return modelBytes(changed, randomTensors(changed, quarter), options);
  },
};

const BATCH_WAYS = {
  ...WAYS,
  'native q8_0': { engine: 'native', dtype: 'q8_0', maxBatch: 64, threads: 2 },
  'native avx2': { engine: 'native', isa: 'avx2', dtype: 'q4_0', maxBatch: 64, threads: 1 },
  'native streams': {
    engine: 'native',
    weights: 'direct',
    dtype: 'q4_0',
    maxBatch: 16,
    threads: 2,
    direct: { streamSlots: 3 },
  },
} as typeof WAYS;

describe.each(Object.keys(ALL_MODELS))('%s', (name) => {
  it.each(Object.keys(BATCH_WAYS))('%s gives each sequence the bits that it has alone', async (way) => {
    const options = BATCH_WAYS[way]!;
    const { dtype: _, ...engineOptions } = options;
    const bytes = await ALL_MODELS[name as keyof typeof ALL_MODELS](options);
    const engine = await engineOf(bytes, engineOptions);
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 4 }), async (steps) => {
        const sessions = Array.from({ length: 5 }, () => engine.createSession());
        const passed: { pieces: number[][]; logits: (Float32Array | undefined)[] }[] = sessions.map(() => ({
          pieces: [],
          logits: [],
        }));
        for (const members of steps) {
          const outcomes = await engine.runBatch(
            members.map(({ who, ...run }) => ({ session: sessions[who]!, ...run })),
          );
          for (const [i, { who, ids, logits }] of members.entries()) {
            expect(outcomes[i]!.error).toBe(undefined);
            expect(outcomes[i]!.logits === undefined).toBe(!logits);
            passed[who]!.pieces.push(ids);
            passed[who]!.logits.push(outcomes[i]!.logits?.slice());
          }
        }
        for (const session of sessions) await session.close();
        for (const { pieces, logits } of passed) {
          const expected = await alone(engine, pieces);
          for (const [i, row] of logits.entries()) if (row) expect(row).toEqual(expected[i]);
        }
      }),
      { numRuns: way === 'reference' ? 2 : 6, seed: 3 },
    );
  });
});

describe('a prompt in pieces', () => {
  it('has the bits of one that passes at once, if no piece is a token alone', async () => {
    const engine = await engineOf(await MODELS.arch2_4!({ dtype: 'q4_0' }), { maxBatch: 16 });
    const prompt = Array.from({ length: 50 }, (_, i) => (7 * i + 3) % 97);
    const [whole] = await alone(engine, [prompt]);
    for (const size of [2, 3, 7, 16, 17, 48]) {
      const pieces = [];
      for (let at = 0; at < 50; at += size) pieces.push(prompt.slice(at, at + size));
      if (pieces.at(-1)!.length === 1) pieces.splice(-2, 2, pieces.slice(-2).flat());
      expect((await alone(engine, pieces)).at(-1)).toEqual(whole);
    }
  });
});

describe('a run that fails', () => {
  const prompt = Array.from({ length: 40 }, (_, i) => i % 90);

  it('by its numbers leaves the others alone', async () => {
    // Token 7 has a value beyond f16.
    const config = makeConfig({ experts: 0, denseDelay: 1 });
    const tensors = randomTensors(config, quarter);
    const embedding = tensors.get('embed_tokens.weight')!.values;
    embedding.fill(0, 7 * 40, 8 * 40);
    embedding[7 * 40] = 1;
    for (const name of ['layers.0.attn.v_proj.weight']) {
      const values = tensors.get(name)!.values;
      for (let row = 0; row < 16; row++) values[40 * row] = 1e5;
    }
    for (let id = 0; id < 130; id++) if (id !== 7) embedding[40 * id] = 0;
    const engine = await engineOf(await modelBytes(config, tensors), { cache: 'f16', maxBatch: 16 });
    const [a, b] = [engine.createSession(), engine.createSession()];
    const outcomes = await engine.runBatch([
      { session: a, ids: [1, 2, 7, 3] },
      { session: b, ids: [1, 2, 3] },
    ]);
    expect(outcomes[0]!.error).toMatchObject({
      code: 'LIMIT_EXCEEDED',
      message: expect.stringContaining('position 2'),
    });
    expect(outcomes[1]!.logits).toEqual((await alone(engine, [[1, 2, 3]]))[0]);
    await a.truncate(0);
    expect(await a.run([1, 2, 3])).toEqual(outcomes[1]!.logits);
  });

  it('by its context or its ids leaves the others alone', async () => {
    const engine = await engineOf(await MODELS.arch4!({}), { maxBatch: 8 });
    const [a, b, c] = [engine.createSession(), engine.createSession(), engine.createSession()];
    const outcomes = await engine.runBatch([
      { session: a, ids: prompt },
      { session: b, ids: Array(65).fill(1) },
      { session: c, ids: prompt.slice(5) },
    ]);
    expect(outcomes[1]!.error).toMatchObject({ code: 'LIMIT_EXCEEDED' });
    expect(outcomes[0]!.logits).toEqual((await alone(engine, [prompt]))[0]);
    expect(outcomes[2]!.logits).toEqual((await alone(engine, [prompt.slice(5)]))[0]);
    for (const session of [a, b, c]) await session.close();
  });

  it('by its abort leaves the others alone, and its session can go back', async () => {
    const engine = await engineOf(await slowModel(), { ...SLOWLY });
    const [a, b] = [engine.createSession(), engine.createSession()];
    await engine.runBatch([{ session: b, ids: [1, 2] }]);
    const abort = new AbortController();
    const running = engine.runBatch([
      { session: a, ids: LONG.slice(0, 60) },
      { session: b, ids: LONG.slice(0, 60), signal: abort.signal },
    ]);
    abort.abort();
    const [first, second] = await running;
    expect(second!.error).toMatchObject({ code: 'INTERRUPTED' });
    expect(first!.logits).toEqual((await alone(engine, [LONG.slice(0, 60)]))[0]);
    expect(await b.truncate(2)).toBe(2);
    expect(await b.run([3])).toEqual((await alone(engine, [[1, 2], [3]]))[1]);
    const [aborted] = await engine.runBatch([{ session: b, ids: [4], signal: abort.signal }]);
    expect(aborted!.error).toMatchObject({ code: 'INTERRUPTED' });
    expect(await b.run([4])).toEqual((await alone(engine, [[1, 2], [3], [4]]))[2]);
  });

  it('by the memory for its KV cache leaves the others alone', async () => {
    const page = 64 * 2 * 2 * 24 * 4;
    const engine = await engineOf(await MODELS.llama!({}), {
      cache: 'f32',
      maxBatch: 8,
      cacheMemory: 3 * page,
      spillDirectory: directory,
    });
    const long = Array.from({ length: 80 }, (_, i) => i % 130);
    const [a, b] = [engine.createSession(), engine.createSession()];
    const outcomes = await engine.runBatch([
      { session: a, ids: long },
      { session: b, ids: [1, 2, 3] },
    ]);
    expect(outcomes[0]!.error).toMatchObject({ code: 'MEMORY' });
    expect(outcomes[1]!.logits).toEqual((await alone(engine, [[1, 2, 3]]))[0]);
    await a.truncate(0);
    expect(a.stats().cacheBytes).toBe(0);
  });
});

it('sessions whose caches are on disk pass together', async () => {
  const page = 64 * 2 * 2 * 24 * 4;
  const bytes = await MODELS.llama!({});
  const options = { cache: 'f32', maxBatch: 16 } as const;
  const spilling = await engineOf(bytes, { ...options, cacheMemory: 5.5 * page, spillDirectory: directory });
  const whole = await engineOf(bytes, options);
  const sequence = (k: number) => Array.from({ length: 126 }, (_, i) => (k * i + 3) % 130);
  const sessions = [3, 5, 7].map(() => spilling.createSession());
  const run = (engineSessions: EngineSession[], at: number, to: number) =>
    spilling.runBatch(
      engineSessions.map((session, i) => ({ session, ids: sequence([3, 5, 7][i]!).slice(at, to) })),
    );
  await run(sessions, 0, 100);
  for (let at = 100; at < 126; at++) {
    const outcomes = await run(sessions, at, at + 1);
    if (at < 125) continue;
    for (const [i, k] of [3, 5, 7].entries()) {
      const pieces = [
        sequence(k).slice(0, 100),
        ...sequence(k)
          .slice(100)
          .map((id) => [id]),
      ];
      expect(outcomes[i]!.logits).toEqual((await alone(whole, pieces)).at(-1));
    }
  }
  expect(spilling.createSession().stats().native!.tiers.cacheRead).toBeGreaterThan(0);
});

it.each(['reference', 'native'] as const)(
  'the %s engine refuses a session twice in a batch',
  async (name) => {
    const engine = await engineOf(await MODELS.arch4!({}), { engine: name });
    const session = engine.createSession();
    const run = { session, ids: [1] };
    await expect(engine.runBatch([run, run])).rejects.toMatchObject({ code: 'USAGE' });
    expect((await engine.runBatch([run]))[0]!.error).toBe(undefined);
    expect(await engine.runBatch([])).toEqual([]);
  },
);
