/** Shapes of synthetic models: Llama configurations as Hugging Face writes them, and the presets of the format. */
import { FAMILIES, readModelConfig, tensorNameMap } from '@cflow/convert';
import {
  CflowError,
  elements,
  type ModelConfig,
  modelTensors,
  PRESETS,
  parameterCount,
  parseModelConfig,
} from '@cflow/format';

/** The fields that Hugging Face's config.json needs; everything else has its usual default. */
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
  /** No dimension is a multiple of a tile or, but for the heads, of a group. */
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

export const GEOMETRIES: readonly string[] = [...Object.keys(LLAMA), ...Object.keys(PRESETS)];

export interface StoredTensor {
  /** As the checkpoint's family calls it. */
  readonly name: string;
  readonly shape: readonly number[];
  readonly count: number;
}

export interface Geometry {
  readonly configJson: Record<string, unknown>;
  readonly config: ModelConfig;
  readonly tensors: readonly StoredTensor[];
}

/**
 * The model called `name`, with as many layers as bring the weights closest to `bytes` (at least one).
 * @throws CflowError USAGE for an unknown name
 */
export function geometryOf(name: string, bytes: number | undefined, bytesEach: number): Geometry {
  const whole = withLayers(name, undefined);
  if (bytes === undefined) return whole;
  const one = parameterCount(withLayers(name, 1).config);
  const each = parameterCount(withLayers(name, 2).config) - one;
  return withLayers(name, Math.max(1, Math.round((bytes / bytesEach - one) / each + 1)));
}

function withLayers(name: string, layers: number | undefined): Geometry {
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
    throw new CflowError('USAGE', `no geometry is called ${JSON.stringify(name)}`, {
      field: 'geometry',
      value: name,
      remedy: `one of ${GEOMETRIES.join(', ')}`,
    });
  }
  const count = layers ?? preset.layers.length;
  const stack = Array.from({ length: count }, (_, i) => preset.layers[i % preset.layers.length]!);
  // A merge must come after the last layer, whatever their number.
  const merge = preset.mergeInterval === undefined || count % preset.mergeInterval === 0;
  const config = parseModelConfig({ ...preset, layers: stack, ...(merge ? {} : { mergeInterval: 1 }) });
  return { model_type: 'cflow', ...config };
}
