/** The architectures of llama.cpp that compute what our families do, as rows: a new one is a row, not a branch. */
import {
  type AttentionConfig,
  CflowError,
  type FfnConfig,
  type LayerConfig,
  type ModelConfig,
} from '@cflow/format';

/** One architecture of llama.cpp: what it takes for granted, in the terms of our configurations. */
export interface Architecture {
  /** general.architecture, and the prefix of its keys. */
  readonly name: string;
  /** Families that are written as it; the first is the one that is read. */
  readonly families: readonly [string, ...string[]];
  /** The family that is read where there are experts, if it is another. */
  readonly expertFamily?: string;
  /** `neighbours`: elements 2i and 2i + 1 of a head rotate together, so rows of q and k are reordered; `halves`: as ours. */
  readonly rotates: 'halves' | 'neighbours';
  readonly qkNorm: AttentionConfig['qkNorm'];
  readonly activation: FfnConfig['activation'];
  /** Of the routing weights: whether llama.cpp makes those of the chosen sum to 1. */
  readonly normalizeTopK?: boolean;
  readonly scaleEmbeddings?: boolean;
  /** Absent: norms of the inputs alone. */
  readonly norms?: NonNullable<LayerConfig['norms']>;
  /** Sliding layers, all but every so many-th, with a θ of their own. */
  readonly windowPeriod?: number;
  /** Every so many-th layer does not rotate. */
  readonly noRopePeriod?: number;
  /** Divides the rotation's frequencies by those of ROPE_FREQS. */
  readonly ropeDivisors?: boolean;
  /** A number of layers whose attention scale is 1/√(hidden/heads) instead of 1/√headDim. */
  readonly dividedScaleLayers?: number;
  /** What llama.cpp takes for granted, in words, with what a config needs for it. */
  readonly demands?: readonly Demand[];
}

/** A condition on the model, and how to say that it is not met. */
export interface Demand {
  readonly words: string;
  /** Whether a model meets it. */
  readonly met: (config: ModelConfig) => boolean;
}

const square: Demand = {
  words: 'heads × headDim = hiddenDim',
  met: ({ hiddenDim, layers }) =>
    layers.every(({ attention }) => attention.heads * attention.headDim === hiddenDim),
};
const wholeHeadRotates: Demand = {
  words: 'rotation of whole heads',
  met: ({ layers }) =>
    layers.every(({ attention }) => !attention.rope || attention.rope.rotaryDim === attention.headDim),
};
const everyHeadItsKeys: Demand = {
  words: 'as many key/value heads as heads',
  met: ({ layers }) => layers.every(({ attention }) => attention.heads === attention.kvHeads),
};
const untied: Demand = { words: 'an LM head of its own', met: ({ tiedEmbeddings }) => !tiedEmbeddings };
const noBias: Demand = {
  words: 'projections without bias',
  met: ({ layers }) => layers.every(({ attention: a, ffn }) => !a.biasQkv && !a.biasOut && !ffn?.bias),
};
const noOutputBias: Demand = {
  words: 'output and FFN without bias',
  met: ({ layers }) => layers.every(({ attention: a, ffn }) => !a.biasOut && !ffn?.bias),
};
const onlyExperts: Demand = {
  words: 'experts and no dense FFN in every layer',
  met: ({ layers }) => layers.every(({ ffn, experts }) => experts && !ffn),
};
const onlyDense: Demand = {
  words: 'a dense FFN and no experts in every layer',
  met: ({ layers }) => layers.every(({ ffn, experts }) => ffn && !experts),
};
const sequential: Demand = {
  words: 'sequential layers',
  met: ({ combineStyle }) => combineStyle === 'sequential',
};

/** All of them. */
export const ARCHITECTURES: readonly Architecture[] = [
  {
    name: 'llama',
    families: ['llama', 'mistral', 'mixtral'],
    expertFamily: 'mixtral',
    rotates: 'neighbours',
    qkNorm: 'none',
    activation: 'silu',
    normalizeTopK: true,
    ropeDivisors: true,
    demands: [sequential, wholeHeadRotates],
  },
  {
    name: 'qwen2',
    families: ['qwen2'],
    rotates: 'halves',
    qkNorm: 'none',
    activation: 'silu',
    demands: [sequential, wholeHeadRotates, square, noOutputBias, onlyDense],
  },
  {
    name: 'qwen3',
    families: ['qwen3'],
    rotates: 'halves',
    qkNorm: 'head',
    activation: 'silu',
    demands: [sequential, wholeHeadRotates, noBias, onlyDense],
  },
  {
    name: 'qwen3moe',
    families: ['qwen3_moe'],
    rotates: 'halves',
    qkNorm: 'head',
    activation: 'silu',
    normalizeTopK: true,
    demands: [sequential, wholeHeadRotates, noBias, onlyExperts],
  },
  {
    name: 'olmoe',
    families: ['olmoe'],
    rotates: 'halves',
    qkNorm: 'whole',
    activation: 'silu',
    normalizeTopK: false,
    demands: [sequential, wholeHeadRotates, square, everyHeadItsKeys, untied, noBias, onlyExperts],
  },
  {
    name: 'olmo2',
    families: ['olmo2'],
    rotates: 'halves',
    qkNorm: 'whole',
    activation: 'silu',
    norms: 'post',
    demands: [sequential, wholeHeadRotates, square, untied, noBias, onlyDense],
  },
  {
    name: 'smollm3',
    families: ['smollm3'],
    rotates: 'neighbours',
    qkNorm: 'none',
    activation: 'silu',
    noRopePeriod: 4,
    demands: [sequential, wholeHeadRotates, noBias, onlyDense],
  },
  {
    name: 'gemma3',
    families: ['gemma3_text'],
    rotates: 'halves',
    qkNorm: 'head',
    activation: 'gelu_tanh',
    scaleEmbeddings: true,
    norms: 'sandwich',
    windowPeriod: 6,
    dividedScaleLayers: 62,
    demands: [sequential, wholeHeadRotates, noBias, onlyDense],
  },
];

const blk = (rest: string) => `blk.{layer}.${rest}`;
const projections = (from: string, names: Readonly<Record<string, string>>): [string, string][] =>
  Object.entries(names).flatMap(([ours, theirs]) =>
    ['weight', 'bias'].map((kind): [string, string] => [
      `layers.{layer}.${from}.${ours}.${kind}`,
      blk(`${theirs}.${kind}`),
    ]),
  );

/** Canonical name → GGUF's; the experts of a layer are one tensor there. */
export const TENSOR_NAMES: Readonly<Record<string, string>> = {
  'embed_tokens.weight': 'token_embd.weight',
  'norm.weight': 'output_norm.weight',
  'lm_head.weight': 'output.weight',
  'layers.{layer}.attn_norm.weight': blk('attn_norm.weight'),
  'layers.{layer}.attn.q_norm.weight': blk('attn_q_norm.weight'),
  'layers.{layer}.attn.k_norm.weight': blk('attn_k_norm.weight'),
  'layers.{layer}.attn_post_norm.weight': blk('post_attention_norm.weight'),
  'layers.{layer}.ffn_norm.weight': blk('ffn_norm.weight'),
  'layers.{layer}.ffn_post_norm.weight': blk('post_ffw_norm.weight'),
  'layers.{layer}.router.weight': blk('ffn_gate_inp.weight'),
  'layers.{layer}.experts.{expert}.gate_proj.weight': blk('ffn_gate_exps.weight'),
  'layers.{layer}.experts.{expert}.up_proj.weight': blk('ffn_up_exps.weight'),
  'layers.{layer}.experts.{expert}.down_proj.weight': blk('ffn_down_exps.weight'),
  ...Object.fromEntries([
    ...projections('attn', { q_proj: 'attn_q', k_proj: 'attn_k', v_proj: 'attn_v', o_proj: 'attn_output' }),
    ...projections('ffn', { gate_proj: 'ffn_gate', up_proj: 'ffn_up', down_proj: 'ffn_down' }),
  ]),
};
/** Divisors of the rotation's frequencies: how the llama architecture says what llama3 scaling does. */
export const ROPE_FREQS = 'rope_freqs.weight';

/** GGUF's name of a canonical tensor. @throws CflowError UNSUPPORTED if it has none */
export function ggufName(architecture: Architecture, canonical: string): string {
  const indices: Record<string, string> = {};
  const pattern = canonical.replace(/\b(layer|expert)s\.(\d+)\b/g, (_, kind: string, index: string) => {
    indices[kind] = index;
    return `${kind}s.{${kind}}`;
  });
  const name = TENSOR_NAMES[pattern];
  if (name === undefined) {
    throw new CflowError('UNSUPPORTED', `${architecture.name} has no place for this tensor`, {
      field: canonical,
    });
  }
  return name.replace(/\{(\w+)\}/g, (_, kind: string) => indices[kind]!);
}

/** Families that GGUF can hold, for messages. */
const families = ARCHITECTURES.flatMap((row) => row.families);

/** @throws CflowError UNSUPPORTED for families that llama.cpp does not know */
export function architectureOf({ family, combineStyle }: ModelConfig, file?: string): Architecture {
  const found = ARCHITECTURES.find((row) => row.families.includes(family));
  if (found) return found;
  const why =
    family === 'cflow'
      ? `llama.cpp does not compute ${combineStyle} layers`
      : `llama.cpp has no architecture for the family ${family} here`;
  throw new CflowError('UNSUPPORTED', why, {
    file,
    field: 'family',
    value: family,
    limit: families,
    remedy: `GGUF is written for ${families.join(', ')}; .safetensors for every model`,
  });
}

/** @throws CflowError UNSUPPORTED for architectures without a row */
export function architectureNamed(name: unknown, file: string): Architecture {
  const found = ARCHITECTURES.find((row) => row.name === name);
  if (found) return found;
  const known = ARCHITECTURES.map((row) => row.name);
  throw new CflowError('UNSUPPORTED', `the architecture ${JSON.stringify(name)} is not read`, {
    file,
    field: 'general.architecture',
    value: name,
    limit: known,
    remedy: `read are ${known.join(', ')}`,
  });
}
