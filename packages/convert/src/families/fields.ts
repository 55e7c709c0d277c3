/** The fields of config.json that decoders have, under one name each. */
import { type Activation, MAX_LAYERS } from '@cflow/format';
import { z } from 'zod';
import type { JsonObject, JsonValue } from '../json.js';
import { ropeFields } from './rope.js';

const count = z.int().min(1);
const limit = z.number().positive();
const perLayer = z.array(z.int().min(0)).max(MAX_LAYERS);

/** `hidden_act` → activation. */
export const ACTIVATION_NAMES: Readonly<Record<string, Activation>> = {
  silu: 'silu',
  swish: 'silu',
  gelu: 'gelu',
  gelu_new: 'gelu_tanh',
  gelu_pytorch_tanh: 'gelu_tanh',
};

export const decoderSchema = z.object({
  ...ropeFields,
  vocab_size: count,
  hidden_size: count,
  intermediate_size: count,
  num_hidden_layers: count.max(MAX_LAYERS),
  num_attention_heads: count,
  num_key_value_heads: count.nullish(),
  head_dim: count.nullish(),
  rms_norm_eps: limit,
  hidden_act: z.string(),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  tie_word_embeddings: z.boolean().default(false),
  sliding_window: count.nullish(),
  use_sliding_window: z.boolean().nullish(),
  max_window_layers: z.int().min(0).nullish(),
  layer_types: z.array(z.string()).nullish(),
  sliding_window_pattern: count.nullish(),
  use_bidirectional_attention: z.union([z.boolean(), z.string()]).nullish(),
  no_rope_layers: perLayer.nullish(),
  no_rope_layer_interval: count.nullish(),
  num_experts: count.nullish(),
  num_experts_per_tok: count.nullish(),
  moe_intermediate_size: count.nullish(),
  norm_topk_prob: z.boolean().nullish(),
  decoder_sparse_step: count.nullish(),
  mlp_only_layers: perLayer.nullish(),
  enable_moe_block: z.boolean().nullish(),
  clip_qkv: z.number().nullish(),
  query_pre_attn_scalar: limit.nullish(),
  attn_logit_softcapping: limit.nullish(),
  final_logit_softcapping: limit.nullish(),
  attention_k_eq_v: z.boolean().nullish(),
  global_head_dim: count.nullish(),
  num_global_key_value_heads: count.nullish(),
  per_layer_config: z
    .record(z.string(), z.looseObject({ head_dim: count.nullish(), num_key_value_heads: count.nullish() }))
    .nullish(),
  num_kv_shared_layers: z.int().min(0).nullish(),
  use_double_wide_mlp: z.boolean().nullish(),
  hidden_size_per_layer_input: z.int().min(0).nullish(),
  vocab_size_per_layer_input: count.nullish(),
});
export type DecoderJson = z.output<typeof decoderSchema>;

/** Other spellings, by the one that is read; the first that is there counts. */
const ALIASES: Readonly<Record<string, readonly string[]>> = {
  num_experts: ['num_local_experts', 'n_routed_experts'],
  num_experts_per_tok: ['top_k_experts', 'num_experts_per_token'],
  sliding_window_pattern: ['_sliding_window_pattern'],
};

/** Spellings that win over the one that is read: Gemma's `hidden_act` is a leftover. */
const PREFERRED: Readonly<Record<string, string>> = { hidden_act: 'hidden_activation' };

const present = (value: JsonValue | undefined) => value !== undefined && value !== null;

/** config.json under one spelling, completed by the defaults of the class. null counts as said. */
export function normalised(json: JsonObject, defaults: JsonObject): JsonObject {
  const own: JsonObject = { ...json };
  for (const [name, others] of Object.entries(ALIASES)) {
    const other = others.find((alias) => present(own[alias]));
    if (!present(own[name]) && other !== undefined) own[name] = own[other]!;
  }
  for (const [name, other] of Object.entries(PREFERRED)) {
    if (present(own[other])) own[name] = own[other]!;
    else if (other in defaults) own[name] = defaults[other]!;
  }
  return { ...defaults, ...own };
}

const tokenId = z.int().min(0);
export const tokenSchema = z.object({
  bos_token_id: tokenId.nullish(),
  eos_token_id: z.union([tokenId.transform((id) => [id]), z.array(tokenId)]).nullish(),
});
