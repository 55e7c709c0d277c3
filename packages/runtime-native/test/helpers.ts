import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { type ExecutionPlan, type ModelConfig, type PlanStep, parseModelConfig } from '@cflow/format';
import { KvCache } from '../src/reference/kv-cache.js';
import { runStep, type StepState } from '../src/reference/steps.js';
import { MemoryWeightStore } from '../src/weights.js';

export type Tensors = Map<string, { shape: number[]; values: Float32Array }>;

export interface Trace {
  tokens: number[];
  residualNorms: number[][];
  routerIndices?: number[][][];
  routerWeights?: number[][][];
  logits: Record<string, number[]>;
  argmax: number[];
}

export const goldenPath = (arch: string, file: string) =>
  fileURLToPath(new URL(`golden/${arch}/${file}`, import.meta.url));

export const goldenJson = (arch: string, file: string): unknown =>
  JSON.parse(readFileSync(goldenPath(arch, file), 'utf8'));

const ELEMENTS: Record<string, (bytes: Buffer) => Float32Array> = {
  F32: (bytes) => Float32Array.from({ length: bytes.length / 4 }, (_, i) => bytes.readFloatLE(4 * i)),
  BF16: (bytes) => {
    const wide = Uint32Array.from({ length: bytes.length / 2 }, (_, i) => bytes.readUInt16LE(2 * i) << 16);
    return new Float32Array(wide.buffer);
  },
};

/** All tensors of a golden safetensors file, as f32. */
export function loadSafetensors(path: string): Tensors {
  const bytes = readFileSync(path);
  const start = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, start)) as Record<
    string,
    { dtype: string; shape: number[]; data_offsets: [number, number] }
  >;
  const tensors: Tensors = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    const [from, to] = entry.data_offsets;
    const values = ELEMENTS[entry.dtype]!(bytes.subarray(start + from, start + to));
    tensors.set(name, { shape: entry.shape, values });
  }
  return tensors;
}

const HUGGING_FACE_NAMES: [RegExp, string][] = [
  [/^model\./, ''],
  [/self_attn/, 'attn'],
  [/mlp/, 'ffn'],
  [/post_attention_layernorm/, 'ffn_norm'],
  [/input_layernorm/, 'attn_norm'],
];

/** Names of a Hugging Face llama checkpoint turned into canonical ones. */
export function canonicalNames(tensors: Tensors): Tensors {
  const rename = (name: string) => HUGGING_FACE_NAMES.reduce((n, [from, to]) => n.replace(from, to), name);
  return new Map([...tensors].map(([name, tensor]) => [rename(name), tensor]));
}

/** Runs one step over buffers given by hand; returns them. */
export async function runAlone(
  step: Omit<PlanStep, 'phase'> & Record<string, unknown>,
  buffers: Record<string, number[]>,
  { tensors = new Map() as Tensors, position = 0, token = 0, cache = new KvCache(1) } = {},
): Promise<Record<string, number[]>> {
  const live = new Map(Object.entries(buffers).map(([name, values]) => [name, Float32Array.from(values)]));
  const state: StepState = {
    token,
    position,
    weights: new MemoryWeightStore(tensors),
    caches: new Map([[0, cache]]),
    transfers: new Map(),
    buffer: (name) => live.get(name)!,
  };
  await runStep({ ...step, phase: 0 } as PlanStep, state);
  return Object.fromEntries([...live].map(([name, values]) => [name, [...values]]));
}

export const tensor = (shape: number[], values: number[]) => ({ shape, values: Float32Array.from(values) });

/** The phase and output buffer of each routing, in the order of the layers that route. */
export function routings(plan: ExecutionPlan): { phase: number; buffer: string }[] {
  return plan.steps.flatMap((step) => (step.op === 'route' ? [{ phase: step.phase, buffer: step.out }] : []));
}

export const norm = (x: Float32Array) => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0));

/** Largest difference of two vectors of one length relative to the largest value expected. */
export function difference(actual: ArrayLike<number>, expected: ArrayLike<number>): number {
  let [worst, scale] = [0, 0];
  for (let i = 0; i < expected.length; i++) {
    worst = Math.max(worst, Math.abs(actual[i]! - expected[i]!));
    scale = Math.max(scale, Math.abs(expected[i]!));
  }
  return actual.length === expected.length ? worst / scale : Number.NaN;
}

export const argmax = (x: Float32Array) => x.indexOf(Math.max(...x));

/** The golden llama's config.json, by hand. */
export const GOLDEN_LLAMA: ModelConfig = parseModelConfig({
  name: 'golden-llama',
  family: 'llama',
  hiddenDim: 64,
  vocabSize: 131,
  contextLength: 128,
  normEps: 1e-5,
  combineStyle: 'sequential',
  bosTokenId: 1,
  eosTokenIds: [2],
  layers: Array.from({ length: 3 }, () => ({
    attention: {
      heads: 4,
      kvHeads: 2,
      headDim: 24,
      scale: 1 / Math.sqrt(24),
      biasQkv: true,
      biasOut: true,
      rope: {
        theta: 10_000,
        rotaryDim: 24,
        scaling: {
          type: 'llama3',
          factor: 4,
          lowFreqFactor: 1,
          highFreqFactor: 4,
          originalContextLength: 16,
        },
      },
    },
    ffn: { dim: 100, activation: 'silu', bias: true },
  })),
});
