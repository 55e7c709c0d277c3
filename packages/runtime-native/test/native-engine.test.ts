/** The native engine against the interpreter: whole models, every instruction set, batches, rings. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import {
  DTYPE_NAMES,
  DTYPES,
  type Dtype,
  modelTensors,
  stripeBytes,
  TILE_COLS,
  TILE_HEADER_BYTES,
  TILE_ROWS,
} from '@cflow/format';
import { makeConfig, makeTensors } from '@cflow/test-kit/models';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { OpenModelOptions } from '../src/model.js';
import { type Addon, addonProblem, loadAddon } from '../src/native/addon.js';
import {
  argmax,
  canonicalNames,
  difference,
  GOLDEN_LLAMA,
  goldenJson,
  goldenPath,
  loadSafetensors,
  type Trace,
} from './helpers.js';
import { type FileOptions, goldenFile, modelBytes } from './model-file.js';
import { modelOpener } from './opened.js';

const TOLERANCE = 1e-4;
const ARCHITECTURES = ['arch1', 'arch2_4', 'arch2_4_sync', 'arch3', 'arch4', 'arch5', 'parallel_sqrt2'];
/** What no test may depend on: a machine without a compiler has no addon, and this says so instead of passing. */
const addon = loadAddon() as Addon;

let directory: string;
beforeAll(async () => {
  expect(addonProblem(), 'the addon is built by npm run build').toBe('');
  directory = await mkdtemp(join(tmpdir(), 'cflow-native-'));
});
afterAll(() => rm(directory, { recursive: true }));

const open = modelOpener();

let files = 0;
async function write(bytes: Uint8Array): Promise<string> {
  const path = join(directory, `${files++}.cflow`);
  await writeFile(path, bytes);
  return path;
}

const golden = async (arch: string, options: FileOptions = {}) =>
  write((await goldenFile(arch, options)).bytes);

/** Logits after each of `ids`; `batches` cuts the prompt into calls of so many tokens, the last logits of each kept. */
async function logitsOf(
  path: string,
  ids: readonly number[],
  options: OpenModelOptions = {},
  call = ids.length,
): Promise<Float32Array[]> {
  const model = await open(path, options);
  const session = model.createSession();
  const all: Float32Array[] = [];
  for (let from = 0; from < ids.length; from += call) {
    await session.prefill(ids.slice(from, from + call), {
      onLogits: (_, logits) => all.push(logits.slice()),
    });
  }
  return all;
}

/** The largest over all positions. */
function differences(actual: readonly Float32Array[], expected: readonly Float32Array[]): number {
  expect(actual).toHaveLength(expected.length);
  return Math.max(...expected.map((row, i) => difference(actual[i]!, row)));
}

const trace = (arch: string) => goldenJson(arch, 'trace.json') as Trace;
const EXACT = { engine: 'native', arithmetic: 'f32', cache: 'f32' } as const;
const REFERENCE = { engine: 'reference' } as const;

it('tile constants are those of the format', () => {
  const constants = addon.constants();
  expect(constants).toMatchObject({
    tileRows: TILE_ROWS,
    tileCols: TILE_COLS,
    tileHeaderBytes: TILE_HEADER_BYTES,
  });
  for (const name of DTYPE_NAMES) {
    const { id, group, scaleBytes, groupBytes } = DTYPES[name];
    expect(constants.dtypes[id]).toEqual({
      rowBytes: (TILE_COLS / group) * groupBytes,
      rowScales: scaleBytes ? TILE_COLS / group : 0,
      raggedStripeBytes: stripeBytes(name, 77, 557),
    });
  }
});

describe('f32 arithmetic', () => {
  it.each(ARCHITECTURES.flatMap((arch) => (['cflow', 'vflow'] as const).map((c) => [arch, c] as const)))(
    '%s .%s agrees with the interpreter and with PyTorch',
    async (arch, container) => {
      const path = await golden(arch, { container });
      const { tokens, argmax: chosen } = trace(arch);
      const actual = await logitsOf(path, tokens, EXACT);
      expect(differences(actual, await logitsOf(path, tokens, REFERENCE))).toBeLessThan(TOLERANCE);
      expect(actual.map(argmax)).toEqual(chosen);
    },
  );

  it('a Hugging Face llama with biases, GQA and scaled RoPE', async () => {
    const tensors = canonicalNames(loadSafetensors(goldenPath('llama', 'model.safetensors')));
    const { tokens, logits, argmax: chosen } = trace('llama');
    const actual = await logitsOf(await write(await modelBytes(GOLDEN_LLAMA, tensors)), tokens, EXACT);
    expect(actual.map(argmax)).toEqual(chosen);
    for (const [position, expected] of Object.entries(logits)) {
      expect(difference(actual[Number(position)]!, expected)).toBeLessThan(TOLERANCE);
    }
  });

  it.each(DTYPE_NAMES)('%s tiles', async (dtype) => {
    const path = await golden('arch2_4', { dtype });
    const { tokens } = trace('arch2_4');
    const actual = await logitsOf(path, tokens, EXACT);
    expect(differences(actual, await logitsOf(path, tokens, REFERENCE))).toBeLessThan(TOLERANCE);
  });

  it.each(addon?.isa().available ?? [])('instruction set %s', async (isa) => {
    for (const dtype of ['f32', 'q4_0'] as const) {
      const path = await golden('arch2_4', { dtype });
      const { tokens } = trace('arch2_4');
      const model = await open(path, { ...EXACT, isa });
      expect(model.createSession().stats().native?.isa).toBe(isa);
      const actual = await logitsOf(path, tokens, { ...EXACT, isa });
      expect(differences(actual, await logitsOf(path, tokens, REFERENCE))).toBeLessThan(TOLERANCE);
    }
  });
});

/** A model with every optional tensor, windows and experts, of random weights small enough to stay finite. */
async function randomModel(shape: Parameters<typeof makeConfig>[0], dtype: Dtype = 'f32'): Promise<string> {
  const config = makeConfig(shape);
  const values = makeTensors(config);
  const tensors = new Map(
    modelTensors(config).map(({ name, shape: dims }) => {
      const damped = values.get(name)!.map((x) => (name.includes('norm') ? 1 + x / 4 : x / 4));
      return [name, { shape: [...dims], values: damped }];
    }),
  );
  return write(await modelBytes(config, tensors, { dtype }));
}

const prompt = (length: number, vocabSize = 130) =>
  Array.from({ length }, (_, i) => (17 * i * i + 5 * i + 3) % vocabSize);

describe('batches and rings', () => {
  it.each([
    ['everything optional', { rich: true, layers: 3 }],
    ['delays', { layers: 4, denseDelay: 1, expertDelay: 2 }],
    ['sliding windows', { layers: 3, slidingEvery: 2, experts: 0 }],
    ['experts alone, tied', { layers: 2, ffn: false, tied: true, experts: 5 }],
  ])('%s: a prompt in batches of 1, 3, 7 and 512 gives what tokens one by one give', async (_name, shape) => {
    const path = await randomModel(shape);
    // Several times the window of 16, and not a multiple of any batch.
    const ids = prompt(83);
    const expected = await logitsOf(path, ids, REFERENCE);
    expect(differences(await logitsOf(path, ids, EXACT, 1), expected)).toBeLessThan(TOLERANCE);
    for (const maxBatch of [1, 3, 7, 512]) {
      expect(differences(await logitsOf(path, ids, { ...EXACT, maxBatch }), expected)).toBeLessThan(
        TOLERANCE,
      );
      const model = await open(path, { ...EXACT, maxBatch });
      const session = model.createSession();
      await session.prefill(ids);
      expect(difference(session.logits(), expected.at(-1)!)).toBeLessThan(TOLERANCE);
    }
  });

  it('the phases that delays allow change no bit', async () => {
    const path = await golden('arch2_4', { dtype: 'q4_0' });
    const { tokens } = trace('arch2_4');
    const [aware, unaware] = [true, false].map((delayAware) =>
      logitsOf(path, tokens, { engine: 'native', delayAware }),
    );
    expect(await aware).toEqual(await unaware);
  });

  it.each([
    ['f32', 'f32'],
    ['q4_0', 'q8'],
  ] as const)('%s tiles, %s arithmetic: the same bits at any thread count', async (dtype, arithmetic) => {
    for (const arch of ['arch1', 'arch2_4']) {
      const path = await golden(arch, { dtype });
      const ids = trace(arch).tokens;
      const one = await logitsOf(path, ids, { engine: 'native', arithmetic, threads: 1 });
      for (const threads of [2, 3]) {
        expect(await logitsOf(path, ids, { engine: 'native', arithmetic, threads })).toEqual(one);
      }
    }
  });

  it('weights are resident where everything fits, unless told otherwise', async () => {
    const path = await golden('arch5');
    const used = async (options?: OpenModelOptions) =>
      (await open(path, options)).createSession().stats().native!.weights;
    expect([await used(), await used({ weights: 'auto' }), await used({ weights: 'mapped' })]).toEqual([
      'resident',
      'resident',
      'mapped',
    ]);
    expect(addon.availableMemory()).toBeGreaterThan(2 ** 20);
    expect(addon.availableMemory()).toBeLessThanOrEqual(totalmem());
  });

  it('resident weights give the same bits as mapped ones', async () => {
    const path = await golden('arch4', { dtype: 'q8_0' });
    const { tokens } = trace('arch4');
    const mapped = await logitsOf(path, tokens, { engine: 'native', weights: 'mapped' });
    expect(await logitsOf(path, tokens, { engine: 'native', weights: 'resident' })).toEqual(mapped);
  });

  it('sessions of one model do not disturb each other', async () => {
    const path = await golden('arch2_4');
    const { tokens } = trace('arch2_4');
    const model = await open(path, EXACT);
    const alone = await logitsOf(path, tokens, EXACT);
    const runs = Array.from({ length: 4 }, async () => {
      const session = model.createSession();
      const all: Float32Array[] = [];
      for (const id of tokens) {
        await session.decode(id);
        all.push(session.logits());
      }
      return all;
    });
    for (const all of await Promise.all(runs)) expect(all).toEqual(alone);
  });
});

describe('q8 arithmetic', () => {
  it.each(addon?.isa().available ?? [])('%s stays near f32', async (isa) => {
    for (const dtype of ['q4_0', 'q8_0'] as const) {
      for (const arch of ['arch1', 'arch3', 'arch2_4', 'arch4']) {
        const path = await golden(arch, { dtype });
        const { tokens } = trace(arch);
        const exact = await logitsOf(path, tokens, EXACT);
        const fast = await logitsOf(path, tokens, { engine: 'native', isa });
        const distances = exact.map((row, i) => difference(fast[i]!, row)).sort((x, y) => x - y);
        expect(distances[0]).toBeGreaterThan(0);
        expect(distances[tokens.length >> 1]).toBeLessThan(0.05);
        // A router of random weights may choose another expert in a near tie, which is no matter of precision.
        if (!arch.match(/arch[24]/)) expect(distances.at(-1)).toBeLessThan(0.06);
      }
    }
  });

  it('is the default for quantized files only', async () => {
    const native = async (dtype: Dtype) =>
      (await open(await golden('arch5', { dtype }))).createSession().stats().native;
    expect(await native('q4_0')).toMatchObject({ arithmetic: 'q8', cache: 'f16' });
    expect(await native('f16')).toMatchObject({ arithmetic: 'f32', cache: 'f32' });
  });
});
