/** The configuration as the keys of an architecture, and back. */
import {
  CflowError,
  type LayerConfig,
  type ModelConfig,
  type ModelConfigInput,
  parseModelConfig,
  type RopeConfig,
} from '@cflow/format';
import { type Architecture, architectureOf } from './architectures.js';
import { llama3Factors } from './rope.js';
import type { GgufEntry, GgufValue } from './schema.js';

/** What tensors say, not keys. */
export interface TensorFacts {
  readonly vocabSize: number;
  readonly tied: boolean;
  readonly biasQkv: boolean;
  readonly biasOut: boolean;
  readonly biasFfn: boolean;
  /** What divisors of the rotation's frequencies mean, if there are any. */
  readonly llama3?: ((rope: RopeConfig) => RopeConfig['scaling']) | undefined;
}

/** The layer whose attention the keys describe: the first that sees everything. */
function fullLayer({ layers }: ModelConfig): LayerConfig {
  return (
    layers.find(({ attention }) => attention.slidingWindow === undefined && attention.rope) ?? layers[0]!
  );
}

/** The keys that llama.cpp computes by, in order. */
export function configEntries(config: ModelConfig, architecture: Architecture): GgufEntry[] {
  const own = (key: string) => `${architecture.name}.${key}`;
  const { attention, ffn, experts } = fullLayer(config);
  const { rope } = attention;
  const sliding = config.layers.find((layer) => layer.attention.slidingWindow !== undefined)?.attention;
  return [
    [own('vocab_size'), 'u32', config.vocabSize],
    [own('context_length'), 'u32', config.contextLength],
    [own('embedding_length'), 'u32', config.hiddenDim],
    [own('block_count'), 'u32', config.layers.length],
    [own('feed_forward_length'), 'u32', (ffn ?? experts)!.dim],
    [own('attention.head_count'), 'u32', attention.heads],
    [own('attention.head_count_kv'), 'u32', attention.kvHeads],
    [own('attention.key_length'), 'u32', attention.headDim],
    [own('attention.value_length'), 'u32', attention.headDim],
    [own('attention.layer_norm_rms_epsilon'), 'f32', config.normEps],
    [own('rope.dimension_count'), 'u32', rope?.rotaryDim ?? attention.headDim],
    [own('rope.freq_base'), 'f32', rope?.theta ?? 10_000],
    ...scalingEntries(rope, own),
    ...(sliding
      ? ([
          [own('attention.sliding_window'), 'u32', sliding.slidingWindow!],
          [own('rope.freq_base_swa'), 'f32', sliding.rope?.theta ?? 10_000],
        ] as GgufEntry[])
      : []),
    ...(config.finalLogitSoftcap
      ? ([[own('final_logit_softcapping'), 'f32', config.finalLogitSoftcap]] as GgufEntry[])
      : []),
    ...(experts
      ? ([
          [own('expert_count'), 'u32', experts.count],
          [own('expert_used_count'), 'u32', experts.topK],
          [own('expert_feed_forward_length'), 'u32', experts.dim],
        ] as GgufEntry[])
      : []),
  ];
}

function scalingEntries(rope: RopeConfig | undefined, own: (key: string) => string): GgufEntry[] {
  const { scaling } = rope ?? {};
  if (scaling?.type !== 'linear' && scaling?.type !== 'yarn') return [];
  const common: GgufEntry[] = [
    [own('rope.scaling.type'), 'string', scaling.type],
    [own('rope.scaling.factor'), 'f32', scaling.factor],
  ];
  if (scaling.type === 'linear') return common;
  return [
    ...common,
    [own('rope.scaling.original_context_length'), 'u32', scaling.originalContextLength],
    [own('rope.scaling.yarn_beta_fast'), 'f32', scaling.betaFast],
    [own('rope.scaling.yarn_beta_slow'), 'f32', scaling.betaSlow],
  ];
}

/** What YaRN multiplies rotated queries and keys by. */
function yarnFactor(keys: Keys): number {
  if (keys.get('rope.scaling.type') !== 'yarn') return 1;
  const factor = keys.number('rope.scaling.factor', 1);
  return keys.number('rope.scaling.attn_factor', 1) * (0.1 * Math.log(factor) + 1);
}

/** The decimal number that somebody meant by an f32: 1e-5, not 9.999999747378752e-6. */
function shortest(value: number): number {
  for (let digits = 1; digits < 9; digits++) {
    const candidate = Number(value.toPrecision(digits));
    if (Math.fround(candidate) === Math.fround(value)) return candidate;
  }
  return value;
}

/** Keys to their values. */
export type KeyValues = Pick<ReadonlyMap<string, GgufValue>, 'get'>;

class Keys {
  readonly #values: KeyValues;
  readonly #prefix: string;
  readonly #file: string;

  constructor(values: KeyValues, prefix: string, file: string) {
    this.#values = values;
    this.#prefix = prefix;
    this.#file = file;
  }

  /** A number; one that is given for every layer must be the same for all. */
  number<T>(key: string, otherwise: T): number | T {
    const field = `${this.#prefix}.${key}`;
    const value = this.#values.get(field);
    if (value === undefined) return otherwise;
    const each = Array.isArray(value) ? new Set(value) : new Set([value]);
    const [first] = each;
    if (each.size === 1 && typeof first === 'number') return shortest(first);
    throw new CflowError(
      each.size > 1 ? 'UNSUPPORTED' : 'CONFIG_INVALID',
      each.size > 1 ? 'differs from layer to layer' : 'is not a number',
      { file: this.#file, field, value },
    );
  }

  need(key: string): number {
    const value = this.number(key, undefined);
    if (value !== undefined) return value;
    throw new CflowError('CONFIG_INVALID', 'missing', { file: this.#file, field: `${this.#prefix}.${key}` });
  }

  get(key: string): GgufValue | undefined {
    return this.#values.get(`${this.#prefix}.${key}`);
  }

  get file(): string {
    return this.#file;
  }
}

/**
 * The configuration that keys and tensors mean.
 * @throws CflowError CONFIG_INVALID, UNSUPPORTED
 */
export function configFromKeys(
  architecture: Architecture,
  values: KeyValues,
  facts: TensorFacts,
  file: string,
): ModelConfig {
  const keys = new Keys(values, architecture.name, file);
  const name = values.get('general.name');
  const experts = keys.number('expert_count', 0) > 0;
  const softcap = keys.number('final_logit_softcapping', undefined);
  const layerCount = keys.need('block_count');
  const token = (key: string) => {
    const id = values.get(`tokenizer.ggml.${key}_token_id`);
    return typeof id === 'number' && id < facts.vocabSize ? id : undefined;
  };
  const bos = token('bos');
  const named = [...new Set([token('eos'), token('eot'), token('eom')])].filter((id) => id !== undefined);
  const eos = ownEosIds(values.get(EOS_IDS_KEY), facts.vocabSize) ?? named;
  const layers = layersFrom(architecture, keys, facts, layerCount);
  const input: ModelConfigInput = {
    name: typeof name === 'string' && name !== '' ? name.slice(0, 256) : architecture.name,
    family: experts ? (architecture.expertFamily ?? architecture.families[0]) : architecture.families[0],
    hiddenDim: keys.need('embedding_length'),
    vocabSize: facts.vocabSize,
    contextLength: keys.need('context_length'),
    normEps: keys.need('attention.layer_norm_rms_epsilon'),
    tiedEmbeddings: facts.tied,
    scaleEmbeddings: architecture.scaleEmbeddings ?? false,
    ...(softcap && { finalLogitSoftcap: softcap }),
    combineStyle: 'sequential',
    ...(bos !== undefined && { bosTokenId: bos }),
    eosTokenIds: eos,
    layers,
  };
  return parseModelConfig(input, file);
}

/** All ids that end a text, which GGUF has keys for three of. */
export const EOS_IDS_KEY = 'cflow.eos_token_ids';

function ownEosIds(value: GgufValue | undefined, vocabSize: number): number[] | undefined {
  const ids: unknown = value;
  if (!Array.isArray(ids)) return undefined;
  return ids.filter((id): id is number => typeof id === 'number' && id < vocabSize);
}

type LayerInput = ModelConfigInput['layers'][number];

function layersFrom(architecture: Architecture, keys: Keys, facts: TensorFacts, count: number): LayerInput[] {
  const heads = keys.need('attention.head_count');
  const headDim = keys.number('attention.key_length', keys.need('embedding_length') / heads);
  if (keys.number('attention.value_length', headDim) !== headDim) {
    throw new CflowError('UNSUPPORTED', 'values have another length than keys', {
      file: keys.file,
      field: `${architecture.name}.attention.value_length`,
    });
  }
  const divided = architecture.dividedScaleLayers === count;
  const shared = {
    heads,
    kvHeads: keys.number('attention.head_count_kv', heads),
    headDim,
    scale: yarnFactor(keys) ** 2 / Math.sqrt(divided ? keys.need('embedding_length') / heads : headDim),
    qkNorm: architecture.qkNorm,
    biasQkv: facts.biasQkv,
    biasOut: facts.biasOut,
  };
  const { norms } = architecture;
  const rest = { ...feedForward(architecture, keys, facts), ...(norms && { norms }) };
  const ropes = ropesFrom(keys, headDim, facts);
  const window = architecture.windowPeriod ? keys.number('attention.sliding_window', 0) : 0;
  // More layers than any model has are refused by the schema, not built first.
  return Array.from({ length: Math.min(count, 65_536) }, (_, layer) => {
    const isNth = (period: number) => (layer + 1) % period === 0;
    if (window && !isNth(architecture.windowPeriod!)) {
      return { attention: { ...shared, slidingWindow: window, rope: ropes.sliding }, ...rest };
    }
    const still = architecture.noRopePeriod !== undefined && isNth(architecture.noRopePeriod);
    return { attention: { ...shared, ...(still ? {} : { rope: ropes.full }) }, ...rest };
  });
}

function feedForward(
  { activation, normalizeTopK }: Architecture,
  keys: Keys,
  facts: TensorFacts,
): Pick<LayerInput, 'ffn' | 'experts'> {
  const count = keys.number('expert_count', 0);
  const dim = keys.need('feed_forward_length');
  if (!count) return { ffn: { dim, activation, bias: facts.biasFfn } };
  return {
    experts: {
      count,
      topK: keys.need('expert_used_count'),
      dim: keys.number('expert_feed_forward_length', dim),
      activation,
      normalizeTopK: normalizeTopK ?? true,
    },
  };
}

function ropesFrom(
  keys: Keys,
  headDim: number,
  facts: TensorFacts,
): { full: RopeConfig; sliding: RopeConfig } {
  const rotaryDim = keys.number('rope.dimension_count', headDim);
  const theta = keys.number('rope.freq_base', 10_000);
  const scaling = scalingFrom(keys, { theta, rotaryDim }, facts);
  return {
    full: { theta, rotaryDim, ...(scaling && { scaling }) },
    sliding: { theta: keys.number('rope.freq_base_swa', 10_000), rotaryDim },
  };
}

function scalingFrom(keys: Keys, rope: RopeConfig, { llama3 }: TensorFacts): RopeConfig['scaling'] {
  // As llama.cpp: linear unless a type is stated, and a factor of 0 is none.
  const type = keys.get('rope.scaling.type') ?? 'linear';
  const factor = keys.number('rope.scaling.factor', keys.number('rope.scale_linear', 1)) || 1;
  if (llama3) return llama3(rope);
  if (type === 'none' || (type === 'linear' && factor === 1)) return undefined;
  if (type === 'linear') return { type: 'linear', factor };
  if (type === 'yarn') {
    return {
      type: 'yarn',
      factor,
      originalContextLength: keys.need('rope.scaling.original_context_length'),
      betaFast: keys.number('rope.scaling.yarn_beta_fast', 32),
      betaSlow: keys.number('rope.scaling.yarn_beta_slow', 1),
      truncate: true,
    };
  }
  throw new CflowError('UNSUPPORTED', `RoPE scaling of type ${JSON.stringify(type)} is not read`, {
    file: keys.file,
    field: 'rope.scaling.type',
    value: type,
    remedy: 'convert the checkpoint itself with cflow-convert',
  });
}

/** The rotation's divisors of a model with llama3 scaling; llama.cpp has no key for it. */
export function ropeFactorsOf(config: ModelConfig): Float32Array | undefined {
  const rope = fullLayer(config).attention.rope;
  return rope?.scaling?.type === 'llama3' ? llama3Factors(rope, rope.scaling) : undefined;
}

function factsOf(config: ModelConfig, { ropeDivisors }: Architecture): TensorFacts {
  const { attention, ffn } = config.layers[0]!;
  const scaling = fullLayer(config).attention.rope?.scaling;
  return {
    vocabSize: config.vocabSize,
    tied: config.tiedEmbeddings,
    biasQkv: attention.biasQkv,
    biasOut: attention.biasOut,
    biasFfn: ffn?.bias ?? false,
    llama3: ropeDivisors && scaling?.type === 'llama3' ? () => scaling : undefined,
  };
}

/**
 * The configuration as it is written. A window that hides nothing is none; one that llama.cpp does not know bounds the
 * context instead: up to there it hides nothing.
 */
export function writtenConfig(config: ModelConfig, architecture: Architecture): ModelConfig {
  if (architecture.windowPeriod) return config;
  const windows = config.layers.map(({ attention }) => attention.slidingWindow ?? Number.POSITIVE_INFINITY);
  const contextLength = Math.min(config.contextLength, ...windows);
  const layers = config.layers.map((layer) => {
    const { slidingWindow: _, ...attention } = layer.attention;
    return { ...layer, attention };
  });
  return { ...config, contextLength, layers };
}

/**
 * The architecture and the configuration as llama.cpp will compute it. What it would compute differently is refused:
 * the keys, read back, must give the same configuration.
 * @throws CflowError UNSUPPORTED naming every field that GGUF cannot say
 */
export function representable(
  config: ModelConfig,
  file?: string,
): { architecture: Architecture; written: ModelConfig } {
  const architecture = architectureOf(config, file);
  const written = writtenConfig(config, architecture);
  const unmet = (architecture.demands ?? []).filter(({ met }) => !met(written)).map(({ words }) => words);
  const values = new Map(configEntries(written, architecture).map(([key, , value]) => [key, value]));
  const readBack = configFromKeys(architecture, values, factsOf(written, architecture), file ?? 'GGUF');
  const lost = [...differences(written, readBack)].filter((path) => !SAID_ELSEWHERE.test(path));
  if (unmet.length === 0 && lost.length === 0) return { architecture, written };
  const problems = [
    ...unmet.map((words) => `it needs ${words}`),
    ...(lost.length ? [`it cannot say ${lost.slice(0, 5).join(', ')}`] : []),
  ];
  throw new CflowError(
    'UNSUPPORTED',
    `llama.cpp's ${architecture.name} would compute this model differently: ${problems.join('; ')}`,
    { file, field: 'config', value: [...unmet, ...lost], remedy: 'export as .safetensors instead' },
  );
}

/** Names and token ids are no part of what is computed. */
const SAID_ELSEWHERE = /^(name|family|bosTokenId|eosTokenIds)/;

/** Paths at which two configurations differ; numbers as far as an f32 can say. */
function* differences(a: unknown, b: unknown, path = ''): Generator<string> {
  if (typeof a === 'number' && typeof b === 'number') {
    if (Math.fround(a) !== Math.fround(b)) yield path;
  } else if (typeof a === 'object' && typeof b === 'object' && a && b) {
    const [left, right] = [a as Record<string, unknown>, b as Record<string, unknown>];
    for (const key of new Set([...Object.keys(left), ...Object.keys(right)])) {
      yield* differences(left[key], right[key], path ? `${path}.${key}` : key);
    }
  } else if (a !== b && !(isDefault(a) && isDefault(b))) yield path;
}

/** Fields that may be absent mean one of these. */
function isDefault(value: unknown): boolean {
  return value === undefined || value === false || value === 'pre';
}
