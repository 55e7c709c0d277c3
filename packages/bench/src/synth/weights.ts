/** Deterministic Gaussian weights at disk speed: one block is drawn, and tensors are cut from it at random places. */
import { f32ToF16 } from '@cflow/format';
import { randomGenerator } from '@cflow/runtime-native';

export const STANDARD_DEVIATION = 0.02;
/** 2^21 values: 4 MiB of BF16. A prime stride is not needed, each piece starts at a place of its own. */
const BLOCK_VALUES = 1 << 21;

interface Storage {
  /** As safetensors calls it. */
  readonly name: string;
  /** As config.json calls it. */
  readonly torch: string;
  readonly bytes: number;
  encode(values: Float32Array): Uint8Array;
}

function halves(values: Float32Array, bits: (value: number, index: number) => number): Uint8Array {
  return new Uint8Array(Uint16Array.from(values, bits).buffer);
}

/** BF16 is the upper half of f32, to nearest even; Gaussian weights are finite, so no NaN can be rounded away. */
function toBf16(values: Float32Array): Uint8Array {
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return halves(values, (_, i) => (words[i]! + 0x7fff + ((words[i]! >>> 16) & 1)) >>> 16);
}

export const STORAGES = {
  bf16: { name: 'BF16', torch: 'bfloat16', bytes: 2, encode: toBf16 },
  f16: { name: 'F16', torch: 'float16', bytes: 2, encode: (values) => halves(values, f32ToF16) },
  f32: {
    name: 'F32',
    torch: 'float32',
    bytes: 4,
    encode: (values) => new Uint8Array(values.slice().buffer),
  },
} as const satisfies Record<string, Storage>;
export type StorageName = keyof typeof STORAGES;

/** `count` values of mean 0 (Box and Muller's transform). */
export function gaussian(
  count: number,
  next: () => number,
  deviation: number = STANDARD_DEVIATION,
): Float32Array {
  const values = new Float32Array(count);
  for (let i = 0; i < count; i += 2) {
    const radius = deviation * Math.sqrt(-2 * Math.log(1 - next()));
    const angle = 2 * Math.PI * next();
    values[i] = radius * Math.cos(angle);
    if (i + 1 < count) values[i + 1] = radius * Math.sin(angle);
  }
  return values;
}

/** Bytes of tensors, in pieces of at most one block. Same seed, same calls, same bytes. */
export class WeightStream {
  readonly #storage: Storage;
  readonly #random: ReturnType<typeof randomGenerator>;
  readonly #block: Uint8Array;
  readonly #one: Uint8Array;

  constructor(storage: StorageName, seed: number) {
    this.#storage = STORAGES[storage];
    this.#random = randomGenerator(seed);
    this.#block = this.#storage.encode(gaussian(BLOCK_VALUES, () => this.#random.next()));
    this.#one = this.#storage.encode(Float32Array.of(1));
  }

  /** Norm weights are 1, as training starts them; so activations keep a plausible size. */
  *tensor(name: string, count: number): Generator<Uint8Array> {
    if (name.includes('norm')) {
      yield Buffer.alloc(count * this.#storage.bytes, this.#one);
      return;
    }
    for (let left = count; left > 0; ) {
      const start = Math.floor((this.#random.next() * BLOCK_VALUES) / 2);
      const values = Math.min(left, BLOCK_VALUES - start);
      yield this.#block.subarray(start * this.#storage.bytes, (start + values) * this.#storage.bytes);
      left -= values;
    }
  }
}
