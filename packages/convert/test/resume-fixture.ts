import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { safetensors } from '@cflow/test-kit/checkpoint';
import type { ConvertRequest } from '../src/options.js';
import { partialNames } from '../src/resume/file.js';
import { readJournal } from '../src/resume/journal.js';
import { llamaConfig, llamaTensors, type Shape, startNode } from './cli-fixture.js';

/** About 68 million parameters: as much work as a test can wait for, and several entries of a journal. */
export const LARGER: Shape = {
  hidden: 512,
  ffn: 2200,
  vocab: 50_000,
  heads: 8,
  kvHeads: 4,
  headDim: 64,
  layers: 4,
};

/** Pseudo-random BF16 of small magnitude, by xorshift: quick, and no two rows are alike. */
function bf16Bytes(count: number, seed: number): Uint8Array {
  const values = new Uint16Array(count);
  let x = seed | 1;
  for (let i = 0; i < count; i++) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    // Sign and mantissa at random under an exponent of 2^-6.
    values[i] = (x & 0x807f) | 0x3c80;
  }
  return new Uint8Array(values.buffer);
}

/** Files of a checkpoint in BF16 with `shards` shards and an index, or one file if `shards` is 1. */
export function bf16Files(shape: Shape, shards = 1): Record<string, Uint8Array | object> {
  const shapes = Object.entries(llamaTensorShapes(shape));
  const parts = Array.from({ length: shards }, (_, i) => {
    const own = shapes.filter((_, index) => index % shards === i);
    return Object.fromEntries(
      own.map(([name, dims], index) => {
        const count = dims.reduce((a, b) => a * b, 1);
        return [name, { dtype: 'BF16', shape: dims, raw: bf16Bytes(count, 7919 * (i + 1) + 31 * index) }];
      }),
    );
  });
  const config = { 'config.json': llamaConfig(shape) };
  if (shards === 1) return { ...config, 'model.safetensors': safetensors(parts[0]!) };
  const name = (i: number) => `model-${i + 1}-of-${shards}.safetensors`;
  const weight_map = Object.fromEntries(
    parts.flatMap((part, i) => Object.keys(part).map((tensor) => [tensor, name(i)])),
  );
  return {
    ...config,
    'model.safetensors.index.json': { metadata: {}, weight_map },
    ...Object.fromEntries(parts.map((part, i) => [name(i), safetensors(part)])),
  };
}

/** Shapes of a llama by the names of Hugging Face. */
export function llamaTensorShapes(shape: Shape): Record<string, number[]> {
  const none = { ...shape, layers: 0, hidden: 1, vocab: 1 };
  // Names from the shared fixture; the shapes of a large model are not filled with JavaScript numbers.
  const names = Object.keys(
    llamaTensors({ ...none, layers: shape.layers, ffn: 1, heads: 1, kvHeads: 1, headDim: 1 }),
  );
  const { hidden, ffn, vocab } = shape;
  const [q, kv] = [shape.heads * shape.headDim, shape.kvHeads * shape.headDim];
  const dims: Record<string, number[]> = {
    embed_tokens: [vocab, hidden],
    lm_head: [vocab, hidden],
    q_proj: [q, hidden],
    k_proj: [kv, hidden],
    v_proj: [kv, hidden],
    o_proj: [hidden, q],
    gate_proj: [ffn, hidden],
    up_proj: [ffn, hidden],
    down_proj: [hidden, ffn],
  };
  return Object.fromEntries(names.map((name) => [name, dims[name.split('.').at(-2)!] ?? [hidden]]));
}

const KILLED = fileURLToPath(new URL('killed-process.mjs', import.meta.url));

/**
 * Converts in a process that is killed as soon as the journal vouches for something behind a `share` of the output.
 * Resolves to the bytes that it vouches for.
 */
export async function killInTheMiddle(request: ConvertRequest, share: number): Promise<number> {
  const { child, outcome } = startNode(KILLED, JSON.stringify(request), String(share));
  const { stderr } = await outcome;
  if (child.signalCode !== 'SIGKILL') throw new Error(`was not killed: ${stderr}`);
  return (await readJournal(partialNames(request.output).journal))!.secured;
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

export async function sameBytes(a: string, b: string): Promise<boolean> {
  return (await readFile(a)).equals(await readFile(b));
}
