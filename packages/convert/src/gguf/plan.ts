/** Where everything of a GGUF file lies, before a byte of it is written. */
import {
  DTYPES,
  type Dtype,
  elements,
  type ModelConfig,
  modelTensors,
  NO_EXPERT,
  type TensorSpec,
} from '@cflow/format';
import { type Architecture, ggufName, ROPE_FREQS } from './architectures.js';
import { wholeGroups } from './blocks.js';
import { configEntries, representable, ropeFactorsOf } from './keys.js';
import type { Heads } from './rope.js';
import { GGUF_ALIGNMENT, type GgufEntry, TENSOR_TYPES, TYPE_OF_DTYPE } from './schema.js';
import { encodeGgufHead } from './write.js';

/** One GGUF tensor: one of ours, the same matrix of every expert in order, or values that the plan made. */
export interface GgufTensorPlan {
  readonly name: string;
  readonly parts: readonly TensorSpec[];
  /** Of the parts; absent for values that the plan made. */
  readonly values?: Float32Array;
  /** Dimensions, fastest first. */
  readonly dims: readonly number[];
  readonly dtype: Dtype;
  readonly bytes: number;
  /** From the start of the data. */
  readonly offset: number;
  /** Set where rows are reordered within heads: see `ourRow`. */
  readonly heads?: Heads;
}

/** A GGUF to be written: its head, and where every tensor will lie. */
export interface GgufPlan {
  /** Everything before the data, padded. */
  readonly head: Uint8Array;
  readonly tensors: readonly GgufTensorPlan[];
  readonly fileBytes: number;
  /** What differs from the model's own file, for people. */
  readonly notes: readonly string[];
}

type Unplaced = Omit<GgufTensorPlan, 'offset'>;

const align = (n: number) => Math.ceil(n / GGUF_ALIGNMENT) * GGUF_ALIGNMENT;

/**
 * Plans the GGUF file of a model.
 * @param tokenizer entries of the tokenizer, and whatever else the file is to say
 * @throws CflowError UNSUPPORTED for what llama.cpp does not know or would compute differently
 */
export function planGguf(
  config: ModelConfig,
  dtype: Dtype,
  tokenizer: readonly GgufEntry[],
  file?: string,
): GgufPlan {
  const { architecture, written } = representable(config, file);
  let offset = 0;
  const tensors = [...planTensors(written, architecture, dtype)].map((tensor) => {
    const placed = { ...tensor, offset };
    offset = align(offset + tensor.bytes);
    return placed;
  });
  const entries: GgufEntry[] = [
    ['general.architecture', 'string', architecture.name],
    ['general.type', 'string', 'model'],
    ['general.name', 'string', config.name],
    ['general.file_type', 'u32', TYPE_OF_DTYPE[dtype].fileType],
    ['general.quantization_version', 'u32', 2],
    ...configEntries(written, architecture),
    ...tokenizer,
  ];
  const rows = tensors.map(({ name, dims, dtype: stored, offset: at }) => {
    return { name, dims, typeId: TENSOR_TYPES[TYPE_OF_DTYPE[stored].name].id, offset: at };
  });
  const head = encodeGgufHead(entries, rows, GGUF_ALIGNMENT);
  return { head, tensors, fileBytes: head.length + offset, notes: notesOn(config, written, tensors, dtype) };
}

function* planTensors(config: ModelConfig, architecture: Architecture, dtype: Dtype): Generator<Unplaced> {
  const factors = ropeFactorsOf(config);
  if (factors) yield madeTensor(ROPE_FREQS, factors);
  for (const [name, parts] of mergeExperts(config, architecture)) {
    const tensor = planTensor(name, parts, dtype);
    const heads = rotatedHeads(config, architecture, parts[0]);
    yield heads ? { ...tensor, heads } : tensor;
  }
}

function mergeExperts(
  config: ModelConfig,
  architecture: Architecture,
): Map<string, [TensorSpec, ...TensorSpec[]]> {
  const merged = new Map<string, [TensorSpec, ...TensorSpec[]]>();
  for (const tensor of modelTensors(config)) {
    const name = ggufName(architecture, tensor.name);
    const parts = merged.get(name);
    if (parts) parts.push(tensor);
    else merged.set(name, [tensor]);
  }
  return merged;
}

/** Rows of q and k, weights and biases, follow the pairs of the rotation. */
export function rotatedHeads(
  { layers }: ModelConfig,
  { rotates }: Architecture,
  { name, layer }: TensorSpec,
): Heads | undefined {
  if (rotates === 'halves' || !/\battn\.[qk]_proj\.(weight|bias)$/.test(name)) return undefined;
  const { headDim, rope } = layers[layer]!.attention;
  // llama.cpp's converters reorder layers that do not rotate, too; any order will do there.
  return { headDim, rotaryDim: rope?.rotaryDim ?? headDim };
}

function madeTensor(name: string, values: Float32Array): Unplaced {
  return { name, parts: [], values, dims: [values.length], dtype: 'f32', bytes: 4 * values.length };
}

/** Rows that are no whole groups are stored as the f32 numbers that they mean. */
function planTensor(name: string, parts: readonly [TensorSpec, ...TensorSpec[]], dtype: Dtype): Unplaced {
  const [{ shape, matrix, expert }] = parts;
  const stored = matrix && wholeGroups(dtype, shape.at(-1)!) ? dtype : 'f32';
  const { group, scaleBytes, groupBytes } = DTYPES[stored];
  const dims = [...shape].reverse();
  const count = parts.length * elements(shape);
  return {
    name,
    parts,
    dims: expert === NO_EXPERT ? dims : [...dims, parts.length],
    dtype: stored,
    bytes: (count / group) * (scaleBytes + groupBytes),
  };
}

function notesOn(
  config: ModelConfig,
  written: ModelConfig,
  tensors: readonly GgufTensorPlan[],
  dtype: Dtype,
): string[] {
  const ragged = tensors.filter((tensor) => tensor.parts[0]?.matrix && tensor.dtype !== dtype).length;
  return [
    ...(ragged
      ? [
          `${ragged} tensors with rows of no whole groups of ${DTYPES[dtype].group} are F32, of the same values`,
        ]
      : []),
    ...(written.contextLength < config.contextLength
      ? [
          `the context is ${written.contextLength} tokens instead of ${config.contextLength}: llama.cpp knows no window here`,
        ]
      : []),
  ];
}
