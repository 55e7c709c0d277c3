/**
 * Shapes of synthetic models: Llama configurations as Hugging Face writes them, the presets of the format, and models
 * that the converter does not read yet.
 */
import { readModelConfig } from '@cflow/convert';
import { FAMILIES } from '@cflow/convert/internal/families/index.js';
import { tensorNameMap } from '@cflow/convert/internal/sources/ledger.js';
import {
  CflowError,
  elements,
  type ModelConfig,
  type ModelConfigInput,
  modelTensors,
  PRESETS,
  parameterCount,
  parseModelConfig,
} from '@cflow/format';

/** The fields that Hugging Face's config.json needs; other fields have defaults. */
const LLAMA: Record<string, Record<string, unknown>> = {
  /** Llama 3.2 1B. */
  'llama-1b': {
    hidden_size: 2048,
    intermediate_size: 8192,
    num_hidden_layers: 16,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    head_dim: 64,
    vocab_size: 128_256,
    max_position_embeddings: 131_072,
    rope_theta: 500_000,
    rms_norm_eps: 1e-5,
    tie_word_embeddings: true,
  },
  /** The shapes of TinyLlama 1.1B. */
  'dense-1.1b': {
    hidden_size: 2048,
    intermediate_size: 5632,
    num_hidden_layers: 22,
    num_attention_heads: 32,
    num_key_value_heads: 4,
    head_dim: 64,
    vocab_size: 32_000,
    max_position_embeddings: 2048,
    rope_theta: 10_000,
    rms_norm_eps: 1e-5,
    tie_word_embeddings: false,
  },
  /** No dimension is a multiple of a tile, and none but the heads of a group. */
  'llama-tiny': {
    hidden_size: 72,
    intermediate_size: 200,
    num_hidden_layers: 3,
    num_attention_heads: 6,
    num_key_value_heads: 3,
    head_dim: 12,
    vocab_size: 523,
    max_position_embeddings: 256,
    rms_norm_eps: 1e-5,
    tie_word_embeddings: false,
  },
};

/** The shapes of OLMoE 1B-7B: sequential layers with experts in place of the FFN, q/k norms over the whole projection. */
const OLMOE_LAYER: ModelConfigInput['layers'][number] = {
  attention: {
    heads: 16,
    kvHeads: 16,
    headDim: 128,
    rope: { theta: 10_000, rotaryDim: 128 },
    scale: 1 / Math.sqrt(128),
    qkNorm: 'whole',
  },
  experts: { count: 64, topK: 8, dim: 1024, activation: 'silu', normalizeTopK: false },
};

/** The same attention and experts in layers of arch2_4: a small dense FFN, and experts that are added two layers later. */
const OLMOE_DELAYED_LAYER: ModelConfigInput['layers'][number] = {
  ...OLMOE_LAYER,
  attention: { ...OLMOE_LAYER.attention, qkNorm: 'none' },
  ffn: { dim: 2048, activation: 'silu' },
};

/** The shapes of Mixtral, an eighth of its size: GQA, eight experts, top-2. */
const MIXTRAL_LAYER: ModelConfigInput['layers'][number] = {
  attention: {
    heads: 16,
    kvHeads: 4,
    headDim: 128,
    rope: { theta: 1_000_000, rotaryDim: 128 },
    scale: 1 / Math.sqrt(128),
  },
  experts: { count: 8, topK: 2, dim: 5632, activation: 'silu', normalizeTopK: true },
};

/** Models without a checkpoint format. */
const MODELS: Record<string, ModelConfig> = {
  olmoe: parseModelConfig({
    name: 'olmoe',
    family: 'olmoe',
    hiddenDim: 2048,
    vocabSize: 50_304,
    contextLength: 4096,
    normEps: 1e-5,
    combineStyle: 'sequential',
    layers: Array.from({ length: 16 }, () => OLMOE_LAYER),
  }),
  'olmoe-delayed': parseModelConfig({
    name: 'olmoe-delayed',
    family: 'cflow',
    hiddenDim: 2048,
    vocabSize: 50_304,
    contextLength: 4096,
    normEps: 1e-5,
    combineStyle: 'delayedSum',
    denseDelay: 1,
    expertDelay: 2,
    layers: Array.from({ length: 16 }, () => OLMOE_DELAYED_LAYER),
  }),
  mixtral: parseModelConfig({
    name: 'mixtral',
    family: 'mixtral',
    hiddenDim: 2048,
    vocabSize: 32_000,
    contextLength: 4096,
    normEps: 1e-5,
    combineStyle: 'sequential',
    layers: Array.from({ length: 16 }, () => MIXTRAL_LAYER),
  }),
};

export const GEOMETRIES: readonly string[] = [LLAMA, PRESETS, MODELS].flatMap(Object.keys);

export interface StoredTensor {
  /** Tensor name in the checkpoint. */
  readonly name: string;
  readonly shape: readonly number[];
  readonly count: number;
}

export interface Geometry {
  readonly configJson: Record<string, unknown>;
  readonly config: ModelConfig;
  readonly tensors: readonly StoredTensor[];
}

/** Size of a model: its own number of layers, another, or the number closest to a size in bytes. */
export interface ModelSize {
  readonly layers?: number | undefined;
  readonly bytes?: number | undefined;
}

/**
 * The checkpoint of the geometry `name`, with the number of layers closest to `bytes` (at least one).
 * @throws CflowError USAGE for an unknown name or a model without a checkpoint format
 */
export function geometryOf(name: string, bytes: number | undefined, bytesEach: number): Geometry {
  if (Object.hasOwn(MODELS, name)) {
    throw new CflowError('USAGE', `${name} has no checkpoint format that the converter reads`, {
      field: 'geometry',
      value: name,
      remedy: 'use --format cflow or gguf',
    });
  }
  return checkpointOf(name, layerCount(name, { bytes }, bytesEach));
}

/**
 * The configuration of the geometry `name`.
 * @throws CflowError USAGE for an unknown name
 */
export function modelOf(name: string, size: ModelSize, bytesEach: number): ModelConfig {
  return configOf(name, layerCount(name, size, bytesEach));
}

function layerCount(name: string, { layers, bytes }: ModelSize, bytesEach: number): number | undefined {
  if (bytes === undefined) return layers;
  const one = parameterCount(configOf(name, 1));
  const each = parameterCount(configOf(name, 2)) - one;
  return Math.max(1, Math.round((bytes / bytesEach - one) / each + 1));
}

function configOf(name: string, layers: number | undefined): ModelConfig {
  const config = Object.hasOwn(MODELS, name) ? MODELS[name]! : checkpointOf(name, layers).config;
  return layers === undefined ? config : withLayers(config, layers);
}

/** The first layers, repeated from the start if there are too few. */
function withLayers(config: ModelConfig, count: number): ModelConfig {
  const layers = Array.from({ length: count }, (_, i) => config.layers[i % config.layers.length]!);
  // A merge must follow the last layer.
  const merge = config.mergeInterval === undefined || count % config.mergeInterval === 0;
  return parseModelConfig({ ...config, layers, ...(merge ? {} : { mergeInterval: 1 }) });
}

function checkpointOf(name: string, layers: number | undefined): Geometry {
  const configJson = Object.hasOwn(LLAMA, name) ? llamaJson(name, layers) : presetJson(name, layers);
  const context = { name, file: 'config.json', generation: undefined };
  const { family, config } = readModelConfig(configJson as never, context);
  const names = tensorNameMap(config, family, 'config.json');
  const tensors = modelTensors(config).map((tensor) => ({
    name: names.get(tensor.name)!,
    shape: tensor.shape,
    count: elements(tensor.shape),
  }));
  return { configJson, config, tensors };
}

function llamaJson(name: string, layers: number | undefined): Record<string, unknown> {
  const { modelType } = FAMILIES.llama!;
  return {
    architectures: ['LlamaForCausalLM'],
    model_type: modelType,
    hidden_act: 'silu',
    ...LLAMA[name],
    ...(layers === undefined ? {} : { num_hidden_layers: layers }),
  };
}

function presetJson(name: string, layers: number | undefined): Record<string, unknown> {
  const preset = Object.hasOwn(PRESETS, name) ? PRESETS[name] : undefined;
  if (!preset) {
    throw new CflowError('USAGE', `unknown geometry ${JSON.stringify(name)}`, {
      field: 'geometry',
      value: name,
      remedy: `one of ${GEOMETRIES.join(', ')}`,
    });
  }
  return { model_type: 'cflow', ...(layers === undefined ? preset : withLayers(preset, layers)) };
}
