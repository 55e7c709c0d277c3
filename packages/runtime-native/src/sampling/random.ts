/**
 * xoshiro128** (Blackman and Vigna), seeded with four outputs of splitmix32: small, documented, the same everywhere.
 * Each generator is independent; the state is 128 bits.
 */
export function randomGenerator(seed: number): { nextUint32(): number; next(): number } {
  const state = seedState(seed);
  const nextUint32 = () => {
    const [a, b, c, d] = state as unknown as [number, number, number, number];
    const result = Math.imul(rotateLeft(Math.imul(b, 5), 7), 9) >>> 0;
    state[2] = c ^ a;
    state[3] = d ^ b;
    state[1] = b ^ state[2]!;
    state[0] = a ^ state[3]!;
    state[2] = state[2]! ^ (b << 9);
    state[3] = rotateLeft(state[3]!, 11);
    return result;
  };
  /** Uniform in [0, 1), 32 bits. */
  return { nextUint32, next: () => nextUint32() / 2 ** 32 };
}

/** The generator's state from a seed; seeds that differ modulo 2^32 give different states. */
function seedState(seed: number): Uint32Array {
  let x = seed >>> 0;
  return Uint32Array.from({ length: 4 }, () => {
    x = (x + 0x9e3779b9) >>> 0;
    let z = x;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return z ^ (z >>> 15);
  });
}

function rotateLeft(x: number, bits: number): number {
  return (x << bits) | (x >>> (32 - bits));
}
