/** Every family of decoders that can be read. Defaults are those of the classes in transformers. */
import { type DecoderRow, decoder, type ExpertsRow } from './decoder.js';
import type { Family } from './family.js';
import type { DecoderJson } from './fields.js';
import {
  gemma4Heads,
  gemma4Sliding,
  gemmaSliding,
  isSlidingType,
  mistralSliding,
  qwenSliding,
  unlikeItsKind,
  windowed,
} from './layer-kinds.js';
import {
  ATTENTION,
  expertsApart,
  expertsFused,
  FFN,
  LINEAR_NAMES,
  LLAMA,
  norms,
  PRE_NORMS,
  QK_NORMS,
  router,
  VOCABULARY,
} from './names.js';
import type { RopeDefaults } from './rope.js';

function rope(theta: number, contextLength: number): RopeDefaults {
  const parameters = { rope_theta: theta };
  return { contextLength, parameters: { full_attention: parameters, sliding_attention: parameters } };
}

const sized = (vocab: number, hidden: number, intermediate: number, layers: number, heads: number) => ({
  vocab_size: vocab,
  hidden_size: hidden,
  intermediate_size: intermediate,
  num_hidden_layers: layers,
  num_attention_heads: heads,
  hidden_act: 'silu',
  rms_norm_eps: 1e-6,
});
const LLAMA_TOKENS = { bos_token_id: 1, eos_token_id: 2 };

function preAttentionScale(fields: DecoderJson): number {
  return (fields.query_pre_attn_scalar ?? 256) ** -0.5;
}

const MOE_APART = { ...router('mlp.gate.weight'), ...expertsApart('mlp.experts', LINEAR_NAMES) };
const MOE_FUSED = { ...router('mlp.gate.weight'), ...expertsFused('mlp.experts', 'rows') };
const MIXTRAL_EXPERTS = {
  ...router('block_sparse_moe.gate.weight'),
  ...expertsApart('block_sparse_moe.experts', ['w1', 'w3', 'w2']),
};
const GEMMA_NORMS = norms({
  attn_norm: 'input_layernorm',
  attn_post_norm: 'post_attention_layernorm',
  ffn_norm: 'pre_feedforward_layernorm',
  ffn_post_norm: 'post_feedforward_layernorm',
});

const llama: DecoderRow = {
  modelType: 'llama',
  defaults: { ...sized(32_000, 4096, 11_008, 32, 32), ...LLAMA_TOKENS },
  rope: rope(1e4, 2048),
  names: LLAMA,
};
const mistral: DecoderRow = {
  ...llama,
  modelType: 'mistral',
  defaults: {
    ...sized(32_000, 4096, 14_336, 32, 32),
    ...LLAMA_TOKENS,
    num_key_value_heads: 8,
    sliding_window: 4096,
  },
  rope: rope(1e4, 131_072),
  sliding: mistralSliding,
};
const mixtral: DecoderRow = {
  ...mistral,
  modelType: 'mixtral',
  defaults: {
    ...mistral.defaults,
    rms_norm_eps: 1e-5,
    sliding_window: null,
    num_experts: 8,
    num_experts_per_tok: 2,
  },
  rope: rope(1e6, 131_072),
  names: { ...LLAMA, ...MIXTRAL_EXPERTS },
  otherNames: [MOE_FUSED],
  sliding: windowed,
  experts: { dim: 'intermediate_size', normalize: () => true },
};
const QWEN = { use_sliding_window: false, sliding_window: 4096, max_window_layers: 28 };
const qwen2: DecoderRow = {
  modelType: 'qwen2',
  defaults: { ...sized(151_936, 4096, 22_016, 32, 32), ...QWEN, num_key_value_heads: 32 },
  rope: rope(1e4, 32_768),
  names: LLAMA,
  biasQkv: true,
  sliding: qwenSliding,
};
const qwen3: DecoderRow = {
  modelType: 'qwen3',
  defaults: { ...qwen2.defaults, head_dim: 128 },
  rope: qwen2.rope,
  names: { ...LLAMA, ...QK_NORMS },
  qkNorm: 'head',
  sliding: qwenSliding,
};
const QWEN_EXPERTS: ExpertsRow = {
  dim: 'moe_intermediate_size',
  normalize: (fields) => fields.norm_topk_prob ?? false,
  has: ({ mlp_only_layers, decoder_sparse_step }, layer) =>
    !mlp_only_layers?.has(layer) && (layer + 1) % (decoder_sparse_step ?? 1) === 0,
};
const qwen3Moe: DecoderRow = {
  ...qwen3,
  modelType: 'qwen3_moe',
  defaults: {
    ...sized(151_936, 2048, 6144, 24, 32),
    ...QWEN,
    num_key_value_heads: 4,
    num_experts: 128,
    num_experts_per_tok: 8,
    moe_intermediate_size: 768,
    decoder_sparse_step: 1,
  },
  names: { ...qwen3.names, ...MOE_APART },
  otherNames: [MOE_FUSED],
  // This class has no list of layer types: with a window all layers slide.
  sliding: (fields) => Boolean(fields.use_sliding_window) && windowed(fields),
  experts: QWEN_EXPERTS,
};
/** The text part of Qwen3-VL-MoE: published files hold the experts as [experts, in, out], transformers 5 saves linear ones. */
const qwen3VlMoe: DecoderRow = {
  ...qwen3Moe,
  modelType: 'qwen3_vl_moe_text',
  defaults: {
    ...sized(151_936, 2048, 5632, 24, 16),
    num_key_value_heads: 16,
    num_experts: 60,
    num_experts_per_tok: 4,
    moe_intermediate_size: 1408,
    decoder_sparse_step: 1,
  },
  rope: rope(5e5, 128_000),
  names: { ...qwen3Moe.names, ...expertsFused('mlp.experts', 'columns') },
  otherNames: [MOE_FUSED],
  // Whatever `norm_topk_prob` says.
  experts: { ...QWEN_EXPERTS, normalize: () => true },
};
const qwen3Vl: DecoderRow = { ...qwen3, modelType: 'qwen3_vl_text', rope: rope(5e5, 128_000) };
const OLMO_TOKENS = { eos_token_id: 50_279 };
const olmoe: DecoderRow = {
  modelType: 'olmoe',
  defaults: {
    ...sized(50_304, 2048, 2048, 16, 16),
    ...OLMO_TOKENS,
    rms_norm_eps: 1e-5,
    num_experts: 64,
    num_experts_per_tok: 8,
  },
  rope: rope(1e4, 4096),
  names: { ...LLAMA, ...QK_NORMS, ...MOE_APART },
  otherNames: [MOE_FUSED],
  qkNorm: 'whole',
  experts: { dim: 'intermediate_size', normalize: (fields) => fields.norm_topk_prob ?? false },
  clipsQkv: true,
};
const olmo2: DecoderRow = {
  modelType: 'olmo2',
  defaults: { ...sized(50_304, 4096, 11_008, 32, 32), ...OLMO_TOKENS, rms_norm_eps: 1e-5 },
  rope: rope(1e4, 2048),
  names: {
    ...VOCABULARY,
    ...ATTENTION,
    ...FFN,
    ...QK_NORMS,
    ...norms({ attn_post_norm: 'post_attention_layernorm', ffn_post_norm: 'post_feedforward_layernorm' }),
  },
  norms: 'post',
  qkNorm: 'whole',
};
const smollm3: DecoderRow = {
  modelType: 'smollm3',
  defaults: {
    ...sized(128_256, 2048, 11_008, 36, 16),
    num_key_value_heads: 4,
    bos_token_id: 128_000,
    eos_token_id: 128_001,
    tie_word_embeddings: true,
  },
  rope: rope(2e6, 32_768),
  names: { ...VOCABULARY, ...PRE_NORMS, ...ATTENTION, ...FFN },
  // 1 means that the layer rotates.
  rotates: rotatesInSmolLm,
  sliding: (fields, layer) =>
    Boolean(fields.use_sliding_window) &&
    (fields.layer_types ? isSlidingType(fields, layer) : windowed(fields) && !rotatesInSmolLm(fields, layer)),
};
function rotatesInSmolLm(fields: DecoderJson, layer: number): boolean {
  const stated = fields.no_rope_layers?.[layer];
  return stated === undefined ? (layer + 1) % (fields.no_rope_layer_interval ?? 4) !== 0 : stated !== 0;
}

const BIDIRECTIONAL = 'use_bidirectional_attention: an encoder, which cannot generate';
const GEMMA_DEFAULTS = {
  hidden_activation: 'gelu_pytorch_tanh',
  num_key_value_heads: 4,
  head_dim: 256,
  tie_word_embeddings: true,
  bos_token_id: 2,
  eos_token_id: 1,
};
const GEMMA: Pick<DecoderRow, 'normOffset' | 'scaleEmbeddings' | 'refuses'> = {
  normOffset: 1,
  scaleEmbeddings: true,
  refuses: (fields) => (fields.use_bidirectional_attention ? BIDIRECTIONAL : undefined),
};
const gemma: DecoderRow = {
  ...GEMMA,
  modelType: 'gemma',
  defaults: { ...sized(256_000, 3072, 24_576, 28, 16), ...GEMMA_DEFAULTS, num_key_value_heads: 16 },
  rope: rope(1e4, 8192),
  names: LLAMA,
};
const gemma2: DecoderRow = {
  ...GEMMA,
  modelType: 'gemma2',
  defaults: {
    ...sized(256_000, 2304, 9216, 26, 8),
    ...GEMMA_DEFAULTS,
    sliding_window: 4096,
    query_pre_attn_scalar: 256,
    final_logit_softcapping: 30,
    attn_logit_softcapping: 50,
    sliding_window_pattern: 2,
  },
  rope: rope(1e4, 8192),
  names: { ...VOCABULARY, ...ATTENTION, ...FFN, ...GEMMA_NORMS },
  norms: 'sandwich',
  attentionSoftcap: true,
  scale: preAttentionScale,
  sliding: gemmaSliding,
};
const gemma3: DecoderRow = {
  ...GEMMA,
  modelType: 'gemma3_text',
  defaults: {
    ...sized(262_208, 2304, 9216, 26, 8),
    ...GEMMA_DEFAULTS,
    sliding_window: 4096,
    query_pre_attn_scalar: 256,
  },
  rope: {
    contextLength: 131_072,
    parameters: { full_attention: { rope_theta: 1e6 }, sliding_attention: { rope_theta: 1e4 } },
  },
  names: { ...VOCABULARY, ...ATTENTION, ...FFN, ...QK_NORMS, ...GEMMA_NORMS },
  norms: 'sandwich',
  qkNorm: 'head',
  scale: preAttentionScale,
  sliding: gemmaSliding,
};
const gemma4: DecoderRow = {
  modelType: 'gemma4_text',
  defaults: {
    ...sized(262_144, 2304, 9216, 30, 8),
    ...GEMMA_DEFAULTS,
    sliding_window: 512,
    global_head_dim: 512,
    hidden_size_per_layer_input: 256,
    vocab_size_per_layer_input: 262_144,
  },
  rope: {
    contextLength: 131_072,
    parameters: {
      full_attention: { rope_type: 'proportional', partial_rotary_factor: 0.25, rope_theta: 1e6 },
      sliding_attention: { rope_theta: 1e4 },
    },
  },
  names: {
    ...VOCABULARY,
    ...ATTENTION,
    ...FFN,
    ...QK_NORMS,
    ...GEMMA_NORMS,
    ...norms({
      ffn_out_norm: 'post_feedforward_layernorm_1',
      experts_norm: 'pre_feedforward_layernorm_2',
      experts_out_norm: 'post_feedforward_layernorm_2',
    }),
    'layers.{layer}.router_norm.weight': 'model.layers.{layer}.router.scale',
    'layers.{layer}.router.expert_scale': 'model.layers.{layer}.router.per_expert_scale',
    'layers.{layer}.output_scale': 'model.layers.{layer}.layer_scalar',
    ...router('router.proj.weight'),
    ...expertsFused('experts', 'rows'),
    'layer_input.norm.weight': 'model.per_layer_projection_norm.weight',
    'layer_input.projection.weight': 'model.per_layer_model_projection.weight',
    'layer_input.embedding.weight': 'model.embed_tokens_per_layer.weight',
    'layers.{layer}.layer_input.gate.weight': 'model.layers.{layer}.per_layer_input_gate.weight',
    'layers.{layer}.layer_input.out.weight': 'model.layers.{layer}.per_layer_projection.weight',
    'layers.{layer}.layer_input.norm.weight': 'model.layers.{layer}.post_per_layer_input_norm.weight',
  },
  norms: 'sandwich',
  sharesKv: true,
  qkNorm: 'head',
  vNorm: true,
  scaleEmbeddings: true,
  outputScale: true,
  scale: () => 1,
  sliding: gemma4Sliding,
  headsOf: gemma4Heads,
  experts: {
    dim: 'moe_intermediate_size',
    normalize: () => true,
    has: ({ enable_moe_block }) => Boolean(enable_moe_block),
    besideFfn: true,
    extras: ({ hidden_size }) => ({
      ownNorms: true,
      routerNorm: true,
      routerScale: hidden_size ** -0.5,
      expertScale: true,
    }),
  },
  refuses: (fields) => {
    if (fields.use_bidirectional_attention === 'all') return BIDIRECTIONAL;
    const odd = unlikeItsKind(fields);
    if (odd !== undefined) return odd;
    const { hidden_size_per_layer_input: dim, vocab_size_per_layer_input: rows, vocab_size } = fields;
    return dim && rows !== vocab_size
      ? `vocab_size_per_layer_input ${rows}: must be vocab_size ${vocab_size}`
      : undefined;
  },
};

const ROWS = [
  llama,
  mistral,
  mixtral,
  qwen2,
  qwen3,
  qwen3Moe,
  qwen3VlMoe,
  qwen3Vl,
  olmoe,
  olmo2,
  smollm3,
  gemma,
  gemma2,
  gemma3,
  gemma4,
];
export const DECODER_FAMILIES: readonly Family[] = ROWS.map(decoder);
