import { type ChildProcess, spawn } from 'node:child_process';
import { readdir } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { safetensors, type TestTensor } from '@cflow/test-kit/checkpoint';

export interface Outcome {
  code: number | null;
  stdout: string;
  stderr: string;
}

const BIN = fileURLToPath(new URL('../bin/cflow-convert.js', import.meta.url));

/** The command as users run it: a process of its own, over dist/. */
interface Started {
  child: ChildProcess;
  outcome: Promise<Outcome>;
}

export function start(...args: string[]): Started {
  return startNode(BIN, ...args);
}

/** Any script. */
export function startNode(...args: string[]): Started {
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const exit = new Promise<number | null>((resolve) => child.once('close', resolve));
  const outcome = Promise.all([exit, text(child.stdout), text(child.stderr)]);
  return { child, outcome: outcome.then(([code, stdout, stderr]) => ({ code, stdout, stderr })) };
}

export function run(...args: string[]): Promise<Outcome> {
  return start(...args).outcome;
}

export async function listing(dir: string): Promise<string[]> {
  return (await readdir(dir)).sort();
}

export interface Shape {
  hidden: number;
  ffn: number;
  vocab: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  layers: number;
}

/** Nothing is a multiple of a tile (128, 256) or of a group (32). */
export const RAGGED: Shape = {
  hidden: 40,
  ffn: 57,
  vocab: 131,
  heads: 4,
  kvHeads: 2,
  headDim: 10,
  layers: 2,
};

/** A configuration as Hugging Face writes it. */
export function llamaConfig(shape: Shape): Record<string, unknown> {
  return {
    model_type: 'llama',
    hidden_size: shape.hidden,
    intermediate_size: shape.ffn,
    num_hidden_layers: shape.layers,
    num_attention_heads: shape.heads,
    num_key_value_heads: shape.kvHeads,
    head_dim: shape.headDim,
    vocab_size: shape.vocab,
    tie_word_embeddings: false,
  };
}

/** Pseudo-random values in [−0.05, 0.05): Knuth's multiplicative hash of name length and index. */
function valuesOf(name: string, count: number): number[] {
  return Array.from(
    { length: count },
    (_, i) => ((Math.imul(i + 1 + name.length * 7919, 2_654_435_761) >>> 0) / 2 ** 32 - 0.5) / 10,
  );
}

/** Tensors of a llama by the names of Hugging Face, written out here once more on purpose. */
export function llamaTensors(s: Shape): Record<string, TestTensor & { values: number[] }> {
  const q = s.heads * s.headDim;
  const kv = s.kvHeads * s.headDim;
  const shapes: [string, number[]][] = [['model.embed_tokens.weight', [s.vocab, s.hidden]]];
  for (let i = 0; i < s.layers; i++) {
    const at = `model.layers.${i}`;
    shapes.push(
      [`${at}.input_layernorm.weight`, [s.hidden]],
      [`${at}.self_attn.q_proj.weight`, [q, s.hidden]],
      [`${at}.self_attn.k_proj.weight`, [kv, s.hidden]],
      [`${at}.self_attn.v_proj.weight`, [kv, s.hidden]],
      [`${at}.self_attn.o_proj.weight`, [s.hidden, q]],
      [`${at}.post_attention_layernorm.weight`, [s.hidden]],
      [`${at}.mlp.gate_proj.weight`, [s.ffn, s.hidden]],
      [`${at}.mlp.up_proj.weight`, [s.ffn, s.hidden]],
      [`${at}.mlp.down_proj.weight`, [s.hidden, s.ffn]],
    );
  }
  shapes.push(['model.norm.weight', [s.hidden]], ['lm_head.weight', [s.vocab, s.hidden]]);
  return Object.fromEntries(
    shapes.map(([name, shape]) => {
      const count = shape.reduce((a, b) => a * b, 1);
      return [name, { shape, values: valuesOf(name, count) }];
    }),
  );
}

/** Files of a checkpoint with one weights file; `change` may damage the tensors first. */
export function llamaFiles(
  shape: Shape = RAGGED,
  change: (tensors: ReturnType<typeof llamaTensors>) => void = () => undefined,
): Record<string, Uint8Array | object> {
  const tensors = llamaTensors(shape);
  change(tensors);
  return { 'config.json': llamaConfig(shape), 'model.safetensors': safetensors(tensors) };
}
