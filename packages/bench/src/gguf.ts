/**
 * A model's weights as GGUF v3, the file of llama.cpp: so that a peer runs the very same weights. Tiles and GGUF have
 * the same groups of 32 (scale, nibble order), so nothing is quantized again.
 */
import {
  CflowError,
  DTYPES,
  type Dtype,
  elements,
  type ModelConfig,
  modelTensors,
  NO_EXPERT,
  type TensorSpec,
} from '@cflow/format';

/** Types of metadata values. */
const VALUE = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 } as const;
/** Types of tensors, and general.file_type of a file that mostly has it. */
const TENSOR: Record<Dtype, { readonly type: number; readonly fileType: number }> = {
  f32: { type: 0, fileType: 0 },
  f16: { type: 1, fileType: 1 },
  q4_0: { type: 2, fileType: 2 },
  q8_0: { type: 8, fileType: 7 },
};
const VERSION = 3;
const ALIGNMENT = 32;

/** One GGUF tensor: one of ours, or the same matrix of every expert in order. */
export interface GgufTensor {
  readonly name: string;
  readonly parts: readonly TensorSpec[];
  /** Dimensions, fastest first. */
  readonly dims: readonly number[];
  readonly type: number;
  readonly bytes: number;
  /** From the start of the data. */
  readonly offset: number;
  /** llama.cpp rotates neighbouring elements where we rotate halves: q and k of `llama` have their rows reordered. */
  readonly interleavedHeadDim?: number;
}

export interface GgufLayout {
  /** Everything before the data, padded. */
  readonly head: Uint8Array;
  readonly tensors: readonly GgufTensor[];
  readonly fileBytes: number;
}

/** GGUF's names of our tensors, without the layer. */
const NAMES: Record<string, string> = {
  'embed_tokens.weight': 'token_embd.weight',
  'norm.weight': 'output_norm.weight',
  'lm_head.weight': 'output.weight',
  'attn_norm.weight': 'attn_norm.weight',
  'attn.q_norm.weight': 'attn_q_norm.weight',
  'attn.k_norm.weight': 'attn_k_norm.weight',
  'attn.q_proj.weight': 'attn_q.weight',
  'attn.k_proj.weight': 'attn_k.weight',
  'attn.v_proj.weight': 'attn_v.weight',
  'attn.o_proj.weight': 'attn_output.weight',
  'ffn_norm.weight': 'ffn_norm.weight',
  'ffn.gate_proj.weight': 'ffn_gate.weight',
  'ffn.up_proj.weight': 'ffn_up.weight',
  'ffn.down_proj.weight': 'ffn_down.weight',
  'router.weight': 'ffn_gate_inp.weight',
  'experts.gate_proj.weight': 'ffn_gate_exps.weight',
  'experts.up_proj.weight': 'ffn_up_exps.weight',
  'experts.down_proj.weight': 'ffn_down_exps.weight',
};

/** The architectures of llama.cpp that have our steps, and whether they rotate neighbours. */
const ARCHITECTURES: Record<string, { readonly interleaved: boolean }> = {
  llama: { interleaved: true },
  olmoe: { interleaved: false },
};

/**
 * Plans a GGUF file of the model.
 * @throws CflowError UNSUPPORTED for a family without an architecture there, or columns that are no whole groups
 */
export function planGguf(config: ModelConfig, dtype: Dtype): GgufLayout {
  const architecture = Object.hasOwn(ARCHITECTURES, config.family) ? ARCHITECTURES[config.family] : undefined;
  if (!architecture) {
    throw new CflowError('UNSUPPORTED', `llama.cpp has no architecture for the family ${config.family}`, {
      field: 'format',
      remedy: `GGUF is written for ${Object.keys(ARCHITECTURES).join(' and ')}`,
    });
  }
  let offset = 0;
  const tensors = [...mergeExperts(config)].map(([name, parts]) => {
    const tensor = planTensor(name, parts, dtype, offset);
    offset = align(offset + tensor.bytes);
    const rotates = architecture.interleaved && /attn_[qk]\.weight$/.test(name);
    return rotates ? { ...tensor, interleavedHeadDim: config.layers[0]!.attention.headDim } : tensor;
  });
  const head = encodeHead(metadata(config, dtype), tensors);
  return { head, tensors, fileBytes: head.length + offset };
}

/** Row of our tensor that stands at `row` of a GGUF tensor of interleaved pairs: element 2i + j of a head is our i + j·d/2. */
export function interleavedRow(headDim: number): (row: number) => number {
  return (row) => {
    const at = row % headDim;
    return row - at + (at >> 1) + (at & 1) * (headDim / 2);
  };
}

function mergeExperts(config: ModelConfig): Map<string, TensorSpec[]> {
  const merged = new Map<string, TensorSpec[]>();
  for (const tensor of modelTensors(config)) {
    const name = ggufName(tensor.name);
    const parts = merged.get(name);
    if (parts) parts.push(tensor);
    else merged.set(name, [tensor]);
  }
  return merged;
}

function ggufName(name: string): string {
  const [, layer, rest] = /^(?:layers\.(\d+)\.)?(.*)$/.exec(name)!;
  const known = NAMES[rest!.replace(/^experts\.\d+\./, 'experts.')];
  if (!known) throw new CflowError('UNSUPPORTED', 'GGUF has no place for this tensor', { field: name });
  return layer === undefined ? known : `blk.${layer}.${known}`;
}

function planTensor(name: string, parts: readonly TensorSpec[], dtype: Dtype, offset: number): GgufTensor {
  const [{ shape, matrix, expert }] = parts as [TensorSpec];
  const stored = matrix ? dtype : 'f32';
  const { group, scaleBytes, groupBytes } = DTYPES[stored];
  if (shape.at(-1)! % group) {
    throw new CflowError('UNSUPPORTED', `${shape.at(-1)} columns are no whole groups of ${group}`, {
      field: name,
      remedy: 'use --dtype f16 or f32, or another geometry',
    });
  }
  const dims = [...shape].reverse();
  const count = parts.length * elements(shape);
  return {
    name,
    parts,
    dims: expert === NO_EXPERT ? dims : [...dims, parts.length],
    type: TENSOR[stored].type,
    bytes: (count / group) * (scaleBytes + groupBytes),
    offset,
  };
}

const align = (n: number) => Math.ceil(n / ALIGNMENT) * ALIGNMENT;

type Entry = readonly [key: string, type: keyof typeof VALUE, value: unknown, item?: keyof typeof VALUE];

/** What llama.cpp wants to know. All layers are alike here. */
function metadata(config: ModelConfig, dtype: Dtype): Entry[] {
  const { attention, ffn, experts } = config.layers[0]!;
  const own = (key: string) => `${config.family}.${key}`;
  const expertEntries: Entry[] = experts
    ? [
        [own('expert_count'), 'u32', experts.count],
        [own('expert_used_count'), 'u32', experts.topK],
        [own('expert_feed_forward_length'), 'u32', experts.dim],
      ]
    : [];
  return [
    ['general.architecture', 'string', config.family],
    ['general.name', 'string', config.name],
    ['general.file_type', 'u32', TENSOR[dtype].fileType],
    [own('vocab_size'), 'u32', config.vocabSize],
    [own('context_length'), 'u32', config.contextLength],
    [own('embedding_length'), 'u32', config.hiddenDim],
    [own('block_count'), 'u32', config.layers.length],
    [own('feed_forward_length'), 'u32', (ffn ?? experts)!.dim],
    [own('attention.head_count'), 'u32', attention.heads],
    [own('attention.head_count_kv'), 'u32', attention.kvHeads],
    [own('attention.layer_norm_rms_epsilon'), 'f32', config.normEps],
    [own('rope.dimension_count'), 'u32', attention.rope?.rotaryDim ?? 0],
    [own('rope.freq_base'), 'f32', attention.rope?.theta ?? 10_000],
    ...expertEntries,
    ...tokenizer(config.vocabSize),
  ];
}

/** Token types of llama.cpp. */
const TOKEN = { normal: 1, unknown: 2, control: 3, byte: 6 } as const;
const SPECIAL = ['<unk>', '<s>', '</s>'];

/** The smallest vocabulary that loads: three special tokens, the bytes, and made-up words. */
function tokenizer(vocabSize: number): Entry[] {
  const bytes = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`);
  const known = [...SPECIAL, ...bytes];
  const tokens = Array.from({ length: vocabSize }, (_, i) => known[i] ?? `token${i}`);
  const typeOf = (i: number) => {
    if (i === 0) return TOKEN.unknown;
    if (i < SPECIAL.length) return TOKEN.control;
    return i < known.length ? TOKEN.byte : TOKEN.normal;
  };
  return [
    ['tokenizer.ggml.model', 'string', 'llama'],
    ['tokenizer.ggml.tokens', 'array', tokens, 'string'],
    ['tokenizer.ggml.scores', 'array', tokens.map((_, i) => -i), 'f32'],
    ['tokenizer.ggml.token_type', 'array', tokens.map((_, i) => typeOf(i)), 'i32'],
    ['tokenizer.ggml.unknown_token_id', 'u32', 0],
    ['tokenizer.ggml.bos_token_id', 'u32', 1],
    ['tokenizer.ggml.eos_token_id', 'u32', 2],
  ];
}

/** Magic, version, counts, metadata, tensor infos, and zeros up to the alignment. */
function encodeHead(entries: readonly Entry[], tensors: readonly GgufTensor[]): Uint8Array {
  const out = new ByteList();
  out.raw(Buffer.from('GGUF'));
  out.u32(VERSION);
  out.u64(tensors.length);
  out.u64(entries.length);
  for (const [key, type, value, item] of entries) {
    out.string(key);
    out.u32(VALUE[type]);
    out.value(type, value, item);
  }
  for (const { name, dims, type, offset } of tensors) {
    out.string(name);
    out.u32(dims.length);
    for (const dim of dims) out.u64(dim);
    out.u32(type);
    out.u64(offset);
  }
  return out.padded(ALIGNMENT);
}

/** Little-endian bytes that grow. */
class ByteList {
  readonly #pieces: Buffer[] = [];

  raw(bytes: Buffer): void {
    this.#pieces.push(bytes);
  }

  u32(value: number): void {
    const b = Buffer.alloc(4);
    b.writeUInt32LE(value);
    this.raw(b);
  }

  u64(value: number): void {
    const b = Buffer.alloc(8);
    b.writeBigUInt64LE(BigInt(value));
    this.raw(b);
  }

  string(text: string): void {
    const bytes = Buffer.from(text);
    this.u64(bytes.length);
    this.raw(bytes);
  }

  value(type: keyof typeof VALUE, value: unknown, item?: keyof typeof VALUE): void {
    const write: Record<keyof typeof VALUE, () => void> = {
      u32: () => this.u32(value as number),
      i32: () => this.u32((value as number) >>> 0),
      bool: () => this.raw(Buffer.from([value ? 1 : 0])),
      f32: () => this.raw(Buffer.from(Float32Array.of(value as number).buffer)),
      string: () => this.string(value as string),
      array: () => {
        this.u32(VALUE[item!]);
        this.u64((value as unknown[]).length);
        for (const each of value as unknown[]) this.value(item!, each);
      },
    };
    write[type]();
  }

  padded(alignment: number): Uint8Array {
    const all = Buffer.concat(this.#pieces);
    return Buffer.concat([all, Buffer.alloc(Math.ceil(all.length / alignment) * alignment - all.length)]);
  }
}
