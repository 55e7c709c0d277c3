import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';

export interface TestTensor {
  dtype?: string;
  shape: number[];
  /** f32 values; zeros if absent. */
  values?: number[];
  /** Bytes per element of a dtype other than F32. */
  size?: number;
  /** The bytes themselves, whatever the dtype. */
  raw?: Uint8Array;
}

/** A safetensors file in memory, written from the description of the format. */
export function safetensors(tensors: Record<string, TestTensor>): Uint8Array {
  let end = 0;
  const header: Record<string, unknown> = {};
  const chunks: Uint8Array[] = [];
  for (const [name, { dtype = 'F32', shape, values, size = 4, raw }] of Object.entries(tensors)) {
    const count = shape.reduce((a, b) => a * b, 1);
    const filled = values && new Uint8Array(Float32Array.from(values).buffer);
    const bytes = raw ?? filled ?? new Uint8Array(count * size);
    header[name] = { dtype, shape, data_offsets: [end, end + bytes.length] };
    end += bytes.length;
    chunks.push(bytes);
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(text.length), true);
  return Buffer.concat([length, text, ...chunks]);
}

/** A directory of files; objects become JSON. Gone when the test ends. */
export async function directory(
  files: Record<string, Uint8Array | string | object>,
  name = 'tiny',
): Promise<string> {
  const parent = await mkdtemp(join(tmpdir(), 'cflow-checkpoint-'));
  onTestFinished(() => rm(parent, { recursive: true }));
  const dir = join(parent, name);
  await mkdir(dir);
  for (const [file, content] of Object.entries(files)) {
    const raw = typeof content === 'string' || content instanceof Uint8Array;
    await writeFile(join(dir, file), raw ? content : JSON.stringify(content));
  }
  return dir;
}

/** hidden 6, 2 heads of 4 (explicit: not 3), 1 kv head, ffn 5, vocab 7, 2 layers. */
export const TINY_CONFIG = {
  model_type: 'llama',
  hidden_size: 6,
  intermediate_size: 5,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 4,
  vocab_size: 7,
  tie_word_embeddings: true,
};

/** All tensors of TINY_CONFIG by the names of Hugging Face, element i of each being i. */
export function tinyTensors(): Record<string, TestTensor> {
  const shapes: Record<string, number[]> = { 'model.embed_tokens.weight': [7, 6], 'model.norm.weight': [6] };
  for (const layer of [0, 1]) {
    const at = `model.layers.${layer}`;
    Object.assign(shapes, {
      [`${at}.input_layernorm.weight`]: [6],
      [`${at}.post_attention_layernorm.weight`]: [6],
      [`${at}.self_attn.q_proj.weight`]: [8, 6],
      [`${at}.self_attn.k_proj.weight`]: [4, 6],
      [`${at}.self_attn.v_proj.weight`]: [4, 6],
      [`${at}.self_attn.o_proj.weight`]: [6, 8],
      [`${at}.mlp.gate_proj.weight`]: [5, 6],
      [`${at}.mlp.up_proj.weight`]: [5, 6],
      [`${at}.mlp.down_proj.weight`]: [6, 5],
    });
  }
  return Object.fromEntries(
    Object.entries(shapes).map(([name, shape]) => {
      const count = shape.reduce((a, b) => a * b, 1);
      return [name, { shape, values: Array.from({ length: count }, (_, i) => i) }];
    }),
  );
}
