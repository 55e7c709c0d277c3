/** Every instruction set that the CPU has, forced one by one, generating and scoring text with whole models. */
import { readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Dtype, parseModelConfig } from '@cflow/format';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { Model, type OpenModelOptions } from '../src/model.js';
import { loadAddon } from '../src/native/addon.js';
import { negativeLogLikelihood } from '../src/perplexity.js';
import { argmax, loadSafetensors } from './helpers.js';
import { goldenFile, modelBytes } from './model-file.js';

const GOLDEN = ['arch1', 'arch2_4', 'arch2_4_sync', 'arch3', 'arch4', 'arch5', 'parallel_sqrt2'] as const;
/** A trained model that the repository carries. */
const BUNDLED = 'stories-arch2_4';
const ISAS = loadAddon()?.isa().available ?? [];
/** One thread: the number changes no bit, as other tests show, and a busy machine lets threads wait for each other. */
const NATIVE = { engine: 'native', threads: 1 } as const;
const EXACT = { ...NATIVE, arithmetic: 'f32', cache: 'f32' } as const;
const REFERENCE = { engine: 'reference' } as const;
const PROMPT = [1, 7, 19];
const GREEDY_TOKENS = 61;

let directory: string;
const files = new Map<string, string>();
/** Token ids that the reference engine generates greedily, by model. */
const expected = new Map<string, number[]>();

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-models-'));
  for (const name of [...GOLDEN, BUNDLED]) {
    await write(name, 'f32');
    expected.set(name, await greedy(name, REFERENCE));
  }
});
afterAll(() => rm(directory, { recursive: true }));

async function write(name: string, dtype: Dtype): Promise<string> {
  const path = join(directory, `${name}.${dtype}.cflow`);
  const bytes = name === BUNDLED ? await bundledFile(dtype) : (await goldenFile(name, { dtype })).bytes;
  await writeFile(path, bytes);
  files.set(`${name}.${dtype}`, path);
  return path;
}

function bundledFile(dtype: Dtype): Promise<Uint8Array> {
  const path = (file: string) =>
    fileURLToPath(new URL(`../../../models/${BUNDLED}/${file}`, import.meta.url));
  const { model_type: _, ...json } = JSON.parse(readFileSync(path('config.json'), 'utf8'));
  return modelBytes(parseModelConfig(json), loadSafetensors(path('model.safetensors')), { dtype });
}

/** Runs `work` on a model, and checks that the instruction set was `isa`. */
async function using<T>(
  path: string,
  options: OpenModelOptions,
  isa: string | undefined,
  work: (model: Model) => Promise<T>,
): Promise<T> {
  const model = await Model.open(path, options);
  try {
    const result = await work(model);
    expect(model.createSession().stats().native?.isa).toBe(isa);
    return result;
  } finally {
    await model.close();
  }
}

function greedy(name: string, options: OpenModelOptions, isa = options.isa): Promise<number[]> {
  return using(files.get(`${name}.f32`)!, options, isa, async (model) => {
    const session = model.createSession();
    const ids: number[] = [];
    const options = { ids: PROMPT, maxTokens: GREEDY_TOKENS, temperature: 0, ignoreEos: true };
    for await (const { id } of session.generate(options)) ids.push(id);
    return ids;
  });
}

it('the CPU has instruction sets, the scalar one among them', () => {
  expect(ISAS).toContain('scalar');
});

describe.each(ISAS)('instruction set %s', (isa) => {
  it.each([...GOLDEN, BUNDLED])('%s: greedy text in f32 is that of the reference engine', async (name) => {
    expect(expected.get(name)).toHaveLength(GREEDY_TOKENS);
    expect(await greedy(name, { ...EXACT, isa })).toEqual(expected.get(name));
  });

  it('CFLOW_ISA forces it too', async () => {
    vi.stubEnv('CFLOW_ISA', isa);
    try {
      expect(await greedy(BUNDLED, EXACT, isa)).toEqual(expected.get(BUNDLED));
    } finally {
      vi.unstubAllEnvs();
    }
  });
});

/** Texts that the model itself wrote, and what exact arithmetic thinks of each token in them. */
interface Scored {
  readonly ids: readonly number[];
  /** After each of ids. */
  readonly argmax: readonly number[];
  /** Of each of ids[1…]. */
  readonly nats: readonly number[];
}

const TEXTS = 2;
const TEXT_TOKENS = 200;
const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);

async function scored(
  ids: readonly number[],
  pass: (each: (i: number, logits: Float32Array) => void) => Promise<void>,
) {
  const result = { ids, argmax: [] as number[], nats: [] as number[] };
  await pass((i, logits) => {
    result.argmax.push(argmax(logits));
    if (i + 1 < ids.length) result.nats.push(negativeLogLikelihood(logits, ids[i + 1]!));
  });
  return result;
}

async function writeText(model: Model, seed: number): Promise<number[]> {
  const session = model.createSession();
  const ids = [...PROMPT];
  const options = { ids, maxTokens: TEXT_TOKENS, temperature: 0.8, seed, ignoreEos: true };
  for await (const { id } of session.generate({ ...options, ids: PROMPT })) ids.push(id);
  return ids;
}

describe('q8 arithmetic on q4_0 tiles, token by token', () => {
  const exact: Scored[] = [];
  beforeAll(async () => {
    const path = await write(BUNDLED, 'q4_0');
    await using(path, EXACT, loadAddon()!.isa().selected, async (model) => {
      for (let seed = 1; seed <= TEXTS; seed++) {
        const ids = await writeText(model, seed);
        const onLogits = (each: (i: number, logits: Float32Array) => void) =>
          model.createSession().prefill(ids, { onLogits: each });
        exact.push(await scored(ids, onLogits));
      }
    });
  });

  it.each(ISAS)('%s chooses as f32 does at 99 of 100 positions, and loses no half percent', async (isa) => {
    const options = { ...NATIVE, arithmetic: 'q8', isa } as const;
    const fast = await using(files.get(`${BUNDLED}.q4_0`)!, options, isa, async (model) => {
      const all: Scored[] = [];
      for (const { ids } of exact) {
        const session = model.createSession();
        const oneByOne = async (each: (i: number, logits: Float32Array) => void) => {
          for (const [i, id] of ids.entries()) {
            await session.decode(id);
            each(i, session.logits());
          }
        };
        all.push(await scored(ids, oneByOne));
      }
      return all;
    });
    const chosen = exact.flatMap(({ argmax }) => argmax);
    const same = fast.flatMap(({ argmax }) => argmax).filter((id, i) => id === chosen[i]).length;
    const [wanted, nats] = [exact, fast].map((texts) => sum(texts.flatMap((text) => text.nats)));
    expect(chosen.length).toBeGreaterThanOrEqual(TEXTS * TEXT_TOKENS);
    expect(same).toBeGreaterThanOrEqual(0.99 * chosen.length);
    expect(Math.abs(nats! / wanted! - 1)).toBeLessThan(0.005);
  });
});
