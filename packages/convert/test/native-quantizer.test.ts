import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import {
  type ByteSink,
  DTYPE_NAMES,
  type Dtype,
  f32ToF16,
  ModelWriter,
  NO_EXPERT,
  quantizeStripe,
  stripeBytes,
} from '@cflow/format';
import { type NativeInput, nativeQuantizer } from '@cflow/runtime-native/internal/native/quantize.js';
import { directory, safetensors } from '@cflow/test-kit/checkpoint';
import { describe, expect, it } from 'vitest';
import { draftMetadata } from '../src/convert.js';
import { DelayedMoESource } from '../src/pipeline/delayed-moe.js';
import { runPipeline } from '../src/pipeline/pipeline.js';
import { openCheckpoint } from '../src/sources/checkpoint.js';
import { llamaConfig, llamaTensors, type Shape } from './cli-fixture.js';

const ID = { version: 5, layer: 0x0102, matrixId: 6, expert: NO_EXPERT, rowOffset: 0x00010080 } as const;
const native = nativeQuantizer()!;

/** Values of very different sizes within every group, some of them zero, exact in f16 and bf16. */
function wideValues(count: number, seed: number): Float32Array {
  let state = seed;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const mantissa = (state >>> 8) % 256;
    return (state >>> 31 ? -1 : 1) * mantissa * 2 ** (((state >>> 24) % 12) - 16);
  });
}

/** Bytes of the values in a checkpoint. */
const STORE: Record<NativeInput, (values: Float32Array) => Uint8Array> = {
  F32: (values) => new Uint8Array(values.slice().buffer),
  F16: (values) => new Uint8Array(Uint16Array.from(values, f32ToF16).buffer),
  BF16: (values) =>
    new Uint8Array(Uint16Array.from(new Uint32Array(values.slice().buffer), (b) => b >>> 16).buffer),
};
const INPUTS = Object.keys(STORE) as NativeInput[];

it('the addon has the quantizer', () => {
  expect(nativeQuantizer()).toBeTypeOf('function');
});

describe('a stripe by the kernels is a stripe by the definition', () => {
  const shapes = [
    [1, 1],
    [3, 31],
    [16, 32],
    [17, 33],
    [128, 256],
    [127, 257],
    [7, 545],
  ] as const;

  it.each(DTYPE_NAMES.flatMap((dtype) => INPUTS.map((input) => [dtype, input] as const)))(
    '%s from %s, every shape, with and without search',
    (dtype, input) => {
      for (const [rows, cols] of shapes) {
        const values = wideValues(rows * cols, rows + cols);
        for (const scaleSearch of [false, true]) {
          const shape = { rows, cols, dtype, id: ID, scaleSearch, zeroNonfinite: false };
          const out = new Uint8Array(stripeBytes(dtype, rows, cols));
          expect(native({ ...shape, weights: STORE[input](values), input }, out)).toBe(true);
          const expected = quantizeStripe(dtype, values, rows, cols, ID, { scaleSearch });
          expect(Buffer.compare(out, expected)).toBe(0);
        }
      }
    },
  );

  const stripe = (dtype: Dtype, values: readonly number[], zeroNonfinite: boolean) => {
    const [rows, cols] = [1, values.length];
    const out = new Uint8Array(stripeBytes(dtype, rows, cols));
    const weights = STORE.F32(Float32Array.from(values));
    const written = native(
      { weights, input: 'F32', rows, cols, dtype, id: ID, scaleSearch: true, zeroNonfinite },
      out,
    );
    return written ? out : undefined;
  };

  it.each([
    ['f32', 3.4028234663852886e38],
    ['f16', 65_519],
    ['q4_0', 7 * 65_504],
    ['q8_0', 127 * 65_504],
  ] as const)('%s holds %d and refuses the next larger', (dtype, largest) => {
    const next = new Float32Array(new Uint32Array(Float32Array.of(largest).buffer).map((b) => b + 1).buffer);
    expect(stripe(dtype, [0, -largest], false)).toBeDefined();
    expect(stripe(dtype, [0, -next[0]!], false)).toBeUndefined();
    expect(stripe(dtype, [0, Number.NaN], false)).toBeUndefined();
  });

  it('stores 0 for NaN and infinities when it may, and refuses what is too large all the same', () => {
    const values = [1, Number.NaN, -2, Number.NEGATIVE_INFINITY];
    expect(stripe('q4_0', values, true)).toEqual(stripe('q4_0', [1, 0, -2, 0], false));
    expect(stripe('q4_0', [...values, 1e9], true)).toBeUndefined();
  });

  it('refuses sizes that do not fit each other', () => {
    const shape = {
      rows: 2,
      cols: 3,
      dtype: 'f32',
      id: ID,
      scaleSearch: true,
      zeroNonfinite: false,
    } as const;
    const weights = new Uint8Array(24);
    const bytes = stripeBytes('f32', 2, 3);
    expect(() => native({ ...shape, weights, input: 'BF16' }, new Uint8Array(bytes))).toThrow(
      'has 24 bytes, expected 12',
    );
    expect(() => native({ ...shape, weights, input: 'F32' }, new Uint8Array(bytes - 1))).toThrow(
      `has ${bytes - 1} bytes, expected ${bytes}`,
    );
    expect(() => native({ ...shape, rows: 129, weights, input: 'F32' }, new Uint8Array(bytes))).toThrow(
      'not an integer from 1 to 128',
    );
  });
});

describe('a whole file', () => {
  /** Two tiles and a rest in each direction somewhere; no dimension is a multiple of a group. */
  const shape: Shape = { hidden: 300, ffn: 545, vocab: 131, heads: 4, kvHeads: 2, headDim: 26, layers: 2 };

  async function checkpoint(input: NativeInput): Promise<string> {
    const tensors = Object.entries(llamaTensors(shape)).map(([name, tensor], index) => {
      const raw = STORE[input](wideValues(tensor.values.length, index));
      return [name, { shape: tensor.shape, dtype: input, raw }] as const;
    });
    return directory({
      'config.json': llamaConfig(shape),
      'model.safetensors': safetensors(Object.fromEntries(tensors)),
    });
  }

  /** SHA-256 of everything that a conversion writes, in the order of writing. */
  async function converted(dir: string, dtype: Dtype, native: boolean): Promise<string> {
    const source = await openCheckpoint(dir);
    const options = { dtype, scaleSearch: true, zeroNonfinite: false, threads: 2, native };
    const hash = createHash('sha256');
    const sink: ByteSink = {
      name: 'hash',
      write: async (at, bytes) => void hash.update(`${at}:`).update(bytes),
    };
    try {
      const metadata = draftMetadata(source.config, options);
      const writer = new ModelWriter(sink, { dtype, container: 'cflow', metadata, crc32 });
      await runPipeline(new DelayedMoESource(source), writer, [], options);
      await writer.finish();
    } finally {
      await source.close();
    }
    return hash.digest('hex');
  }

  it.each([
    ['q4_0', 'BF16'],
    ['q8_0', 'BF16'],
    ['f16', 'F16'],
    ['f32', 'F32'],
  ] as const)('%s from %s: both ways write the same bytes', async (dtype, input) => {
    const dir = await checkpoint(input);
    expect(await converted(dir, dtype, true)).toBe(await converted(dir, dtype, false));
  });
});
