/** Real geometries and the spellings of configurations, family by family; expected values by hand. */
import { type ModelConfig, modelTensors, parameterCount } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { draftMetadata, plannedLayout } from '../src/convert.js';
import { placeTensors, readModelConfig } from '../src/families/index.js';
import type { JsonObject } from '../src/json.js';

const read = (json: object) => readModelConfig(json as JsonObject, { name: 'm', file: 'config.json' });
const config = (json: object): ModelConfig => read(json).config;
const attention = (json: object, layer = 0) => config(json).layers[layer]!.attention;

const MIXTRAL_8X22B = {
  model_type: 'mixtral',
  hidden_size: 6144,
  intermediate_size: 16_384,
  num_hidden_layers: 56,
  num_attention_heads: 48,
  num_key_value_heads: 8,
  num_local_experts: 8,
  num_experts_per_tok: 2,
  rope_theta: 1e6,
  sliding_window: null,
  vocab_size: 32_000,
};
const QWEN3_1_7B = {
  model_type: 'qwen3',
  hidden_size: 2048,
  intermediate_size: 6144,
  num_hidden_layers: 28,
  num_attention_heads: 16,
  num_key_value_heads: 8,
  head_dim: 128,
  rope_theta: 1e6,
  rope_scaling: null,
  sliding_window: null,
  max_window_layers: 28,
  use_sliding_window: false,
  tie_word_embeddings: true,
  vocab_size: 151_936,
  max_position_embeddings: 40_960,
};
/** The text part keeps what differs from its class only in newer files; this one says all. */
const GEMMA3_27B = {
  model_type: 'gemma3',
  eos_token_id: [1, 106],
  text_config: {
    model_type: 'gemma3_text',
    hidden_size: 5376,
    intermediate_size: 21_504,
    num_hidden_layers: 62,
    num_attention_heads: 32,
    num_key_value_heads: 16,
    head_dim: 128,
    query_pre_attn_scalar: 168,
    rope_scaling: { factor: 8, rope_type: 'linear' },
    rope_theta: 1e6,
    rope_local_base_freq: 10_000,
    sliding_window: 1024,
    vocab_size: 262_208,
  },
};
const GEMMA4_26B = {
  model_type: 'gemma4',
  eos_token_id: [1, 106],
  tie_word_embeddings: true,
  text_config: {
    model_type: 'gemma4_text',
    hidden_size: 2816,
    intermediate_size: 2112,
    moe_intermediate_size: 704,
    num_hidden_layers: 30,
    num_attention_heads: 16,
    num_key_value_heads: 8,
    num_global_key_value_heads: 2,
    attention_k_eq_v: true,
    enable_moe_block: true,
    num_experts: 128,
    top_k_experts: 8,
    hidden_size_per_layer_input: 0,
    final_logit_softcapping: 30,
    sliding_window: 1024,
    max_position_embeddings: 262_144,
    layer_types: Array.from({ length: 30 }, (_, i) => (i % 6 === 5 ? 'full_attention' : 'sliding_attention')),
  },
};

describe('parameters of published models', () => {
  it('Mixtral 8x22B: 140.6 B', () => {
    const attentionWeights = 2 * 6144 * 6144 + 2 * 1024 * 6144;
    const layer = attentionWeights + 8 * 3 * 16_384 * 6144 + 8 * 6144 + 2 * 6144;
    const total = 56 * layer + 2 * 32_000 * 6144 + 6144;
    expect(total).toBe(140_620_634_112);
    expect(parameterCount(config(MIXTRAL_8X22B))).toBe(total);
    // The index states 281,241,268,224 bytes of BF16.
    expect(2 * total).toBe(281_241_268_224);
  });

  it('Qwen3 1.7B: 1,720,574,976', () => {
    const layer = 2048 * (2048 + 2 * 1024 + 2048) + 3 * 6144 * 2048 + 2 * 128 + 2 * 2048;
    expect(parameterCount(config(QWEN3_1_7B))).toBe(28 * layer + 151_936 * 2048 + 2048);
    expect(28 * layer + 151_936 * 2048 + 2048).toBe(1_720_574_976);
  });

  it('Gemma 3 27B: the text part', () => {
    const layer = 5376 * (2 * 4096 + 2 * 2048) + 3 * 21_504 * 5376 + 2 * 128 + 4 * 5376;
    const model = config(GEMMA3_27B);
    expect(parameterCount(model)).toBe(62 * layer + 262_208 * 5376 + 5376);
    expect(model.eosTokenIds).toEqual([1, 106]);
    expect(model.layers.filter((l) => !l.attention.slidingWindow)).toHaveLength(10);
  });

  it('Gemma 4 26B-A4B: 25,233,141,790, experts in all layers', () => {
    const model = config(GEMMA4_26B);
    expect(parameterCount(model)).toBe(25_233_141_790);
    // Two stacked expert tensors a layer in place of 3 × 128.
    const stored = new Set(
      [...placeTensors(model, read(GEMMA4_26B).family).values()].map(({ name }) => name),
    );
    expect(stored.size).toBe(657);
    expect(model.layers.every(({ experts, ffn }) => experts && ffn)).toBe(true);
    expect(attention(GEMMA4_26B, 5)).toMatchObject({
      headDim: 512,
      kvHeads: 2,
      scale: 1,
      valueFromKey: true,
      vNorm: true,
      rope: { theta: 1e6, rotaryDim: 512, scaling: { type: 'proportional', pairs: 64, factor: 1 } },
    });
    expect(attention(GEMMA4_26B, 4)).toMatchObject({
      headDim: 256,
      kvHeads: 8,
      slidingWindow: 1024,
      rope: { theta: 1e4, rotaryDim: 256 },
    });
    expect(attention(GEMMA4_26B, 4).valueFromKey).toBeUndefined();
  });
});

describe('sizes of files', () => {
  /** A whole tile of Q4_0: header, a scale of two bytes for every 32 weights, half a byte for each. */
  const tile = 16 + (2 * 128 * 256) / 32 + (128 * 256) / 2;
  const tiled = (weights: number) => (weights / (128 * 256)) * tile;
  const fileBytes = (model: ModelConfig) =>
    plannedLayout(draftMetadata(model, { dtype: 'q4_0', scaleSearch: true, zeroNonfinite: false }), {
      dtype: 'q4_0',
      container: 'cflow',
    }).fileBytes;

  it('Qwen3 1.7B and Mixtral 8x22B: tiles and f32 norms and routers, and little more', () => {
    const qwen = 28 * (2048 * 6144 + 3 * 6144 * 2048) + 151_936 * 2048;
    const qwenPlain = 28 * (2 * 128 + 2 * 2048) + 2048;
    const mixtral = 56 * (2 * 6144 * 6144 + 2 * 1024 * 6144 + 24 * 16_384 * 6144) + 2 * 32_000 * 6144;
    const mixtralPlain = 56 * (8 * 6144 + 2 * 6144) + 6144;
    for (const [json, matrices, plain] of [
      [QWEN3_1_7B, qwen, qwenPlain],
      [MIXTRAL_8X22B, mixtral, mixtralPlain],
    ] as const) {
      const model = config(json);
      expect(parameterCount(model)).toBe(matrices + plain);
      const least = tiled(matrices) + 4 * plain;
      expect(fileBytes(model)).toBeGreaterThan(least);
      // Header, tables, metadata, and padding of at most 4 KiB a stream.
      expect(fileBytes(model) - least).toBeLessThan(500 * 4096);
    }
    expect(tiled(mixtral) + 4 * mixtralPlain).toBe(79_179_615_744);
  });
});

describe('Gemma 4 with inputs for each layer', () => {
  it('E2B: shared keys, double width, one table', () => {
    const model = config({
      model_type: 'gemma4_text',
      hidden_size: 1536,
      intermediate_size: 6144,
      num_hidden_layers: 35,
      num_attention_heads: 8,
      num_key_value_heads: 1,
      sliding_window: 512,
      num_kv_shared_layers: 20,
      use_double_wide_mlp: true,
      layer_types: Array.from({ length: 35 }, (_, i) =>
        i % 5 === 4 ? 'full_attention' : 'sliding_attention',
      ),
    });
    expect(model.perLayerInput).toEqual({ dim: 256 });
    // The last layers of their kind that have keys: 13 slides, 14 is full.
    expect(model.layers.map(({ attention }) => attention.kvFrom)).toEqual([
      ...Array.from({ length: 15 }, () => undefined),
      ...Array.from({ length: 20 }, (_, i) => (i % 5 === 4 ? 14 : 13)),
    ]);
    expect(model.layers.map(({ ffn }) => ffn!.dim)).toEqual([
      ...Array.from({ length: 15 }, () => 6144),
      ...Array.from({ length: 20 }, () => 12_288),
    ]);
  });

  it('is refused where the two vocabularies differ', () => {
    const json = { model_type: 'gemma4_text', vocab_size_per_layer_input: 100 };
    expect(() => config(json)).toThrow('vocab_size_per_layer_input 100: must be vocab_size 262144');
  });
});

describe('windows', () => {
  it.each<[string, object, (number | undefined)[]]>([
    ['mistral, absent', { model_type: 'mistral' }, [4096, 4096]],
    ['mistral, null', { model_type: 'mistral', sliding_window: null }, [undefined, undefined]],
    ['mixtral, absent', { model_type: 'mixtral' }, [undefined, undefined]],
    ['qwen2, off by default', { model_type: 'qwen2', sliding_window: 9 }, [undefined, undefined]],
    [
      'qwen2, from a layer on',
      { model_type: 'qwen2', sliding_window: 9, use_sliding_window: true, max_window_layers: 1 },
      [undefined, 9],
    ],
    [
      'qwen3, by types',
      {
        model_type: 'qwen3',
        sliding_window: 9,
        use_sliding_window: true,
        layer_types: ['sliding_attention', 'full_attention'],
      },
      [9, undefined],
    ],
    ['gemma3, an older pattern', { model_type: 'gemma3_text', sliding_window_pattern: 2 }, [4096, undefined]],
    ['gemma2, every other layer', { model_type: 'gemma2' }, [4096, undefined]],
    [
      'gemma4, the last layer is full',
      { model_type: 'gemma4_text', hidden_size_per_layer_input: 0 },
      [512, undefined],
    ],
  ])('%s', (_name, json, expected) => {
    const { layers } = config({ ...json, num_hidden_layers: 2 });
    expect(layers.map((layer) => layer.attention.slidingWindow)).toEqual(expected);
  });
});

describe('RoPE by layer', () => {
  const TYPES = ['sliding_attention', 'full_attention'];
  const gemma = { model_type: 'gemma3_text', num_hidden_layers: 2, layer_types: TYPES, head_dim: 8 };
  const old = { rope_theta: 5e5, rope_local_base_freq: 2e4, rope_scaling: { type: 'linear', factor: 8 } };
  const modern = {
    rope_parameters: {
      full_attention: { rope_type: 'linear', factor: 8, rope_theta: 5e5 },
      sliding_attention: { rope_type: 'default', rope_theta: 2e4 },
    },
  };

  it('is the same in both spellings', () => {
    for (const spelling of [old, modern]) {
      expect(attention({ ...gemma, ...spelling }, 0).rope).toEqual({ theta: 2e4, rotaryDim: 8 });
      expect(attention({ ...gemma, ...spelling }, 1).rope).toEqual({
        theta: 5e5,
        rotaryDim: 8,
        scaling: { type: 'linear', factor: 8 },
      });
    }
    expect(attention(gemma, 0).rope).toEqual({ theta: 1e4, rotaryDim: 8 });
    expect(attention(gemma, 1).rope).toEqual({ theta: 1e6, rotaryDim: 8 });
  });

  it('leaves out layers of SmolLM3: 1 means that a layer rotates', () => {
    const json = { model_type: 'smollm3', num_hidden_layers: 4 };
    const rotating = (more: object) =>
      config({ ...json, ...more }).layers.map((l) => Boolean(l.attention.rope));
    expect(rotating({})).toEqual([true, true, true, false]);
    expect(rotating({ no_rope_layers: [0, 1, 0, 1] })).toEqual([false, true, false, true]);
    expect(rotating({ no_rope_layer_interval: 2 })).toEqual([true, false, true, false]);
  });

  it('puts the attention factor of YaRN into the scale of the scores', () => {
    const json = {
      model_type: 'qwen2',
      num_hidden_layers: 1,
      num_attention_heads: 32,
      hidden_size: 4096,
      max_position_embeddings: 32_768,
      rope_scaling: { type: 'yarn', factor: 4, original_max_position_embeddings: 32_768 },
    };
    const factor = 0.1 * Math.log(4) + 1;
    expect(attention(json).scale).toBeCloseTo(factor ** 2 / Math.sqrt(128), 15);
    expect(attention(json).rope!.scaling).toEqual({
      type: 'yarn',
      factor: 4,
      originalContextLength: 32_768,
      betaFast: 32,
      betaSlow: 1,
      truncate: true,
    });
    expect(config(json).contextLength).toBe(131_072);
    const stated = { ...json.rope_scaling, attention_factor: 2 };
    expect(attention({ ...json, rope_scaling: stated }).scale).toBeCloseTo(4 / Math.sqrt(128), 15);
    const deepseek = { ...json.rope_scaling, mscale: 2, mscale_all_dim: 1 };
    const ratio = (0.2 * Math.log(4) + 1) / factor;
    expect(attention({ ...json, rope_scaling: deepseek }).scale).toBeCloseTo(ratio ** 2 / Math.sqrt(128), 15);
  });
});

describe('experts', () => {
  const moe = { model_type: 'qwen3_moe', num_hidden_layers: 4 };

  it('are counted under three names', () => {
    for (const name of ['num_experts', 'num_local_experts', 'n_routed_experts']) {
      expect(config({ ...moe, [name]: 12 }).layers[0]!.experts!.count).toBe(12);
    }
  });

  it('are normalised only where the config or the class says so', () => {
    const normalised = (json: object) => config(json).layers[0]!.experts!.normalizeTopK;
    expect(normalised(moe)).toBe(false);
    expect(normalised({ ...moe, norm_topk_prob: true })).toBe(true);
    expect(normalised({ model_type: 'olmoe', num_hidden_layers: 1 })).toBe(false);
    expect(normalised({ model_type: 'mixtral', num_hidden_layers: 1 })).toBe(true);
  });

  it('stand in some layers', () => {
    const with_ = (more: object) => config({ ...moe, ...more }).layers.map(({ experts }) => Boolean(experts));
    expect(with_({ mlp_only_layers: [1] })).toEqual([true, false, true, true]);
    expect(with_({ decoder_sparse_step: 2 })).toEqual([false, true, false, true]);
  });

  it('are found apart, fused, and fused with columns, by model type and stored names', () => {
    const json = {
      ...moe,
      num_hidden_layers: 1,
      num_experts: 3,
      num_experts_per_tok: 2,
      hidden_size: 10,
      head_dim: 2,
      moe_intermediate_size: 4,
    };
    const { family, config: model } = read(json);
    const up = 'layers.0.experts.2.up_proj.weight';
    expect(placeTensors(model, family).get(up)).toEqual({
      name: 'model.layers.0.mlp.experts.2.up_proj.weight',
      shape: [4, 10],
      row: 0,
    });
    const fused = 'model.layers.0.mlp.experts.gate_up_proj';
    const names = new Set([fused, 'model.layers.0.mlp.experts.down_proj', 'model.layers.0.mlp.gate.weight']);
    expect(placeTensors(model, family, names).get(up)).toEqual({ name: fused, shape: [3, 8, 10], row: 20 });
    const wrapped = read({
      model_type: 'qwen3_vl_moe',
      text_config: { ...json, model_type: 'qwen3_vl_moe_text' },
    });
    expect(placeTensors(wrapped.config, wrapped.family, new Set()).get(up)).toEqual({
      name: fused,
      shape: [3, 10, 8],
      row: 20,
      transposed: { column: 4 },
    });
  });

  it('are clipped where clip_qkv says so, and the class does', () => {
    expect(attention({ model_type: 'olmoe', clip_qkv: 8 }).clipQkv).toBe(8);
    expect(attention({ model_type: 'olmoe', clip_qkv: null }).clipQkv).toBeUndefined();
    expect(() => config({ model_type: 'olmoe', clip_qkv: 0 })).toThrow('config.json: clip_qkv: ');
    const other = read({ model_type: 'llama', clip_qkv: 8 });
    expect(other.config.layers[0]!.attention.clipQkv).toBeUndefined();
    expect(other.notes).toContain('config.json: clip_qkv without effect in llama: ignored');
  });
});

describe('the text part of other wrappers', () => {
  it('has its tensors under whatever prefix they are stored', () => {
    const { family, config: model } = read(GEMMA3_27B);
    const norm = (...stored: string[]) => placeTensors(model, family, new Set(stored)).get('norm.weight')!;
    expect(norm('model.language_model.embed_tokens.weight').name).toBe('model.language_model.norm.weight');
    expect(norm('language_model.model.embed_tokens.weight')).toEqual({
      name: 'language_model.model.norm.weight',
      shape: [5376],
      row: 0,
      offset: 1,
    });
    expect(family.ignorable.flatMap(({ patterns }) => patterns)).toContain('vision_tower.*');
  });

  it('takes activations and ties from where they stand', () => {
    const text = { model_type: 'mistral', num_hidden_layers: 1 };
    expect(
      config({ model_type: 'mistral3', tie_word_embeddings: true, text_config: text }).tiedEmbeddings,
    ).toBe(true);
    const gemma = { model_type: 'gemma3_text', num_hidden_layers: 1, hidden_act: 'gelu' };
    expect(config(gemma).layers[0]!.ffn!.activation).toBe('gelu_tanh');
  });

  it('names every tensor of every family', () => {
    for (const modelType of ['olmo2', 'olmoe', 'smollm3', 'gemma', 'gemma2', 'mistral', 'qwen2']) {
      const { family, config: model } = read({ model_type: modelType, num_hidden_layers: 1 });
      expect(placeTensors(model, family).size).toBe(modelTensors(model).length);
    }
  });
});
