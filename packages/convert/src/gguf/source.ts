/** A GGUF file as a model: its configuration, and every tensor of ours as rows of one of its tensors. */
import {
  type ByteSource,
  CflowError,
  checkStreamCount,
  type Dtype,
  dequantizeStripe,
  elements,
  f16ToF32,
  type ModelConfig,
  modelTensors,
  readExactly,
  type TensorSpec,
  TILE_ROWS,
} from '@cflow/format';
import { listOf } from '../sources/shards.js';
import { type Architecture, architectureNamed, ggufName, ROPE_FREQS } from './architectures.js';
import { blocksToStripe } from './blocks.js';
import { configFromKeys, type TensorFacts } from './keys.js';
import { rotatedHeads } from './plan.js';
import { type GgufFile, type GgufTensorInfo, readGguf } from './read.js';
import { ggufRow, type Heads, recogniseLlama3 } from './rope.js';
import { TENSOR_TYPES, type TensorTypeName } from './schema.js';
import { type ImportedTokenizer, importTokenizer } from './tokenizer-import.js';
import { unusedKeyNotes } from './unused-keys.js';

/** Where the rows of one of our tensors lie. */
export interface GgufRows {
  /** Name of the tensor in the GGUF. */
  readonly name: string;
  readonly type: TensorTypeName;
  /** First byte of the first row in the file. */
  readonly offset: number;
  readonly rows: number;
  readonly cols: number;
  readonly heads: Heads | undefined;
}

/** A GGUF as a model of ours. */
export interface GgufModel {
  readonly source: ByteSource;
  readonly architecture: Architecture;
  readonly config: ModelConfig;
  readonly tokenizer: ImportedTokenizer;
  readonly tensors: ReadonlyMap<string, GgufRows>;
  /** Of keys that nothing is computed by. */
  readonly keyNotes: readonly string[];
  /** The tile dtype that keeps most weights as they are. */
  readonly dtype: Dtype;
}

/**
 * Reads and checks the head, and that every tensor is there in the shape that the keys ask for. No weights but the
 * divisors of the rotation.
 * @throws CflowError as `readGguf`, and CONFIG_INVALID, UNSUPPORTED, TENSOR_MISMATCH (all at once)
 */
export async function openGguf(source: ByteSource): Promise<GgufModel> {
  const gguf = await readGguf(source);
  const { metadata } = gguf;
  refuseSplit(gguf);
  refuseAdapter(gguf);
  const architecture = architectureNamed(metadata.get('general.architecture'), source.name);
  const used = new Set<string>();
  const values = {
    get: (key: string) => {
      used.add(key);
      return metadata.get(key);
    },
  };
  const config = configFromKeys(architecture, values, await factsOf(gguf, architecture), source.name);
  const keyNotes = unusedKeyNotes(architecture, metadata, used, source.name);
  checkStreamCount(config, source.name);
  const tensors = placeTensors(gguf, architecture, config);
  const tokenizer = importTokenizer(metadata, source.name);
  const dtype = mainDtype(config, tensors);
  return { source, architecture, config, tokenizer, tensors, keyNotes, dtype };
}

function refuseSplit({ metadata, source }: GgufFile): void {
  const count = metadata.get('split.count');
  if (count === undefined || count === 0 || count === 1) return;
  throw new CflowError('UNSUPPORTED', `one of ${String(count)} parts of a model`, {
    file: source.name,
    field: 'split.count',
    value: count,
    remedy: 'join them with "llama-gguf-split --merge"',
  });
}

function refuseAdapter({ metadata, source }: GgufFile): void {
  if (metadata.get('general.type') !== 'adapter' && !metadata.has('adapter.type')) return;
  throw new CflowError('UNSUPPORTED', 'a LoRA adapter, not a model', {
    file: source.name,
    field: 'general.type',
    remedy: 'merge it into its base model with "llama-export-lora", then convert that file',
  });
}

async function factsOf({ tensors, source }: GgufFile, { ropeDivisors }: Architecture): Promise<TensorFacts> {
  const embedding = tensors.get('token_embd.weight');
  if (!embedding)
    throw new CflowError('TENSOR_MISMATCH', 'missing', { file: source.name, field: 'token_embd.weight' });
  const stored = tensors.get(ROPE_FREQS);
  const divisors = stored && ropeDivisors ? await vector(source, stored) : undefined;
  return {
    vocabSize: embedding.dims[1] ?? 0,
    tied: !tensors.has('output.weight'),
    biasQkv: tensors.has('blk.0.attn_q.bias'),
    biasOut: tensors.has('blk.0.attn_output.bias'),
    biasFfn: tensors.has('blk.0.ffn_gate.bias'),
    llama3: divisors && ((rope) => recogniseLlama3(rope, divisors, source.name)),
  };
}

/** Far more than any head has. */
const MAX_DIVISORS = 65_535;

async function vector(
  source: ByteSource,
  { name, dims, type, offset, bytes }: GgufTensorInfo,
): Promise<Float32Array> {
  if (dims.length !== 1 || dims[0]! > MAX_DIVISORS || type !== 'F32') {
    throw new CflowError('TENSOR_MISMATCH', `is ${type} [${dims}], not an F32 vector`, {
      file: source.name,
      field: name,
    });
  }
  return DECODERS.F32(await readExactly(source, offset, bytes, name), 1, dims[0]!);
}

/** Tensors that files may carry and nobody needs: what is left of training, and what follows from the configuration. */
const IGNORABLE = /^(rope_freqs\.weight|.*\.attn_rot_embd|.*\.rope_freqs\.weight)$/;

function placeTensors(
  { source, tensors }: GgufFile,
  architecture: Architecture,
  config: ModelConfig,
): Map<string, GgufRows> {
  const problems: string[] = [];
  const used = new Set<string>();
  const placed = new Map<string, GgufRows>();
  for (const spec of modelTensors(config)) {
    const name = ggufName(architecture, spec.name);
    used.add(name);
    const info = tensors.get(name);
    const experts = /\.experts\.\d+\./.test(spec.name)
      ? config.layers[spec.layer]!.experts!.count
      : undefined;
    const dims = [...[...spec.shape].reverse(), ...(experts === undefined ? [] : [experts])];
    if (!info) problems.push(`missing ${name} [${dims}]`);
    else if (!sameDims(info.dims, dims)) problems.push(`${name} is [${info.dims}], not [${dims}]`);
    else placed.set(spec.name, rowsOf(spec, info, experts ?? 1, rotatedHeads(config, architecture, spec)));
  }
  const surplus = [...tensors.keys()].filter((name) => !used.has(name) && !IGNORABLE.test(name));
  problems.push(...surplus.map((name) => `surplus ${name} [${tensors.get(name)!.dims}]`));
  if (problems.length === 0) return placed;
  const unique = [...new Set(problems)];
  throw new CflowError(
    'TENSOR_MISMATCH',
    `${unique.length} tensors do not match the keys of ${architecture.name}: ${listOf(unique)}`,
    { file: source.name, value: unique.length, remedy: 'convert the checkpoint itself with cflow-convert' },
  );
}

/** Trailing dimensions of 1 may be left out. */
function sameDims(a: readonly number[], b: readonly number[]): boolean {
  return Array.from({ length: Math.max(a.length, b.length) }).every((_, i) => (a[i] ?? 1) === (b[i] ?? 1));
}

function rowsOf(
  { shape, expert }: TensorSpec,
  { name, type, offset, bytes }: GgufTensorInfo,
  experts: number,
  heads: Heads | undefined,
): GgufRows {
  const index = experts > 1 ? expert : 0;
  const rows = shape[0]!;
  return {
    name,
    type,
    offset: offset + (index * bytes) / experts,
    rows,
    cols: elements(shape) / rows,
    heads,
  };
}

/** The dtype for the type that most weights of matrices have; BF16 has no dtype of its own and is kept exactly in f32. */
function mainDtype(config: ModelConfig, tensors: ReadonlyMap<string, GgufRows>): Dtype {
  const weights = new Map<TensorTypeName, number>();
  for (const spec of modelTensors(config)) {
    if (!spec.matrix) continue;
    const { type } = tensors.get(spec.name)!;
    weights.set(type, (weights.get(type) ?? 0) + elements(spec.shape));
  }
  const [type] = [...weights].sort(([, a], [, b]) => b - a)[0]!;
  return dtypeOf(type) ?? 'f32';
}

/** The tile dtype that holds the same weights, bit by bit; undefined if none does. */
export function dtypeOf(type: TensorTypeName): Dtype | undefined {
  const row = TENSOR_TYPES[type];
  return 'dtype' in row ? row.dtype : undefined;
}

/** Rows of blocks → f32 [rows, cols]. */
type Decoder = (bytes: Uint8Array, rows: number, cols: number) => Float32Array;

const view = (bytes: Uint8Array) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
const plain =
  (each: number, get: (v: DataView, at: number) => number): Decoder =>
  (bytes) => {
    const v = view(bytes);
    return Float32Array.from({ length: bytes.length / each }, (_, i) => get(v, each * i));
  };
const NO_ID = { version: 6, layer: 0, matrixId: 0, expert: 0, rowOffset: 0 } as const;
const grouped =
  (dtype: Dtype): Decoder =>
  (bytes, rows, cols) =>
    dequantizeStripe(dtype, blocksToStripe(dtype, bytes, rows, cols, NO_ID), rows, cols);
const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

/** Rows of a tensor type to f32. */
export const DECODERS: Readonly<Record<TensorTypeName, Decoder>> = {
  F32: plain(4, (v, at) => v.getFloat32(at, true)),
  F16: plain(2, (v, at) => f16ToF32(v.getUint16(at, true))),
  BF16: plain(2, (v, at) => {
    word[0] = v.getUint16(at, true) << 16;
    return float[0]!;
  }),
  Q4_0: grouped('q4_0'),
  Q8_0: grouped('q8_0'),
};

/** Bytes of rows `first` … of one of our tensors, in our order. Memory: those rows and the heads that they lie in. */
export async function readRows(
  source: ByteSource,
  { type, offset, rows: all, cols, heads }: GgufRows,
  first: number,
  rows: number,
  name: string,
): Promise<Uint8Array> {
  const { group, bytes: blockBytes } = TENSOR_TYPES[type];
  const stride = (cols / group) * blockBytes;
  if (!heads) return readExactly(source, offset + first * stride, rows * stride, name);
  const from = first - (first % heads.headDim);
  const to = Math.min(all, Math.ceil((first + rows) / heads.headDim) * heads.headDim);
  const whole = await readExactly(source, offset + from * stride, (to - from) * stride, name);
  const sorted = new Uint8Array(rows * stride);
  for (let row = 0; row < rows; row++) {
    const at = (ggufRow(heads, first + row) - from) * stride;
    sorted.set(whole.subarray(at, at + stride), row * stride);
  }
  return sorted;
}

/** Values of a tensor that is stored as plain f32, in our order. */
export async function readPlain(model: GgufModel, spec: TensorSpec): Promise<Float32Array> {
  const place = model.tensors.get(spec.name)!;
  const values = new Float32Array(elements(spec.shape));
  for (let first = 0; first < place.rows; first += TILE_ROWS) {
    const rows = Math.min(TILE_ROWS, place.rows - first);
    const bytes = await readRows(model.source, place, first, rows, spec.name);
    values.set(DECODERS[place.type](bytes, rows, place.cols), first * place.cols);
  }
  return values;
}
