/** The fields of config.json that decoders have, under one name each. */
import { type Activation, CflowError, MAX_EXPERTS, MAX_LAYERS } from '@cflow/format';
import { z } from 'zod';
import type { JsonObject, JsonValue } from '../json.js';
import { ropeFields } from './rope.js';

const count = z.int().min(1);
/** Writers say "none" as null, 0 or a negative number: as if the field were absent. */
const unlessNone = <T extends z.ZodType>(schema: T) =>
  z.preprocess((value) => (typeof value === 'number' && value <= 0 ? undefined : value), schema.nullish());
const optionalCount = unlessNone(count);
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

/**
 * transformers 5.18 writes the layers' numbers as padded strings: "05" is layer 5. null says that all layers are alike,
 * an absent field that the class decides.
 */
function byLayer<T>(stated: Record<string, T> | null | undefined, context: z.RefinementCtx) {
  if (stated === undefined) return undefined;
  const layers = new Map<number, T>();
  for (const [key, value] of Object.entries(stated ?? {})) {
    const layer = Number(key);
    if (!/^\d{1,5}$/.test(key) || layers.has(layer)) {
      context.addIssue({
        code: 'custom',
        message: `${JSON.stringify(key)} is not the number of one layer`,
        path: [key],
      });
    }
    layers.set(layer, value);
  }
  return layers;
}

/** What `layer_types` may say of a layer. */
const LAYER_TYPES = ['full_attention', 'sliding_attention'];

/**
 * @throws CflowError CONFIG_INVALID for lists that do not fit the number of layers, UNSUPPORTED for unknown kinds
 */
export function checkLayers(fields: DecoderJson, file: string): void {
  const { layer_types: types, num_hidden_layers: layers, per_layer_config: own } = fields;
  const lists = { layer_types: types, no_rope_layers: fields.no_rope_layers };
  for (const [field, list] of Object.entries(lists)) {
    // An empty list of NoPE layers is how configurations say that there are none stated.
    if (!list || list.length === layers || (field === 'no_rope_layers' && list.length === 0)) continue;
    throw new CflowError(
      'CONFIG_INVALID',
      `has ${list.length} entries for ${layers} layers (num_hidden_layers)`,
      {
        file,
        field,
        value: list.length,
        limit: layers,
      },
    );
  }
  const unknown = types?.find((type) => !LAYER_TYPES.includes(type));
  if (unknown !== undefined) {
    throw new CflowError('UNSUPPORTED', `${JSON.stringify(unknown)} is not supported`, {
      file,
      field: `layer_types[${types!.indexOf(unknown)}]`,
      value: unknown,
      limit: LAYER_TYPES,
      remedy: `supported: ${LAYER_TYPES.join(', ')}`,
    });
  }
  const beyond = [...(own?.keys() ?? [])].find((layer) => layer >= layers);
  if (beyond === undefined) return;
  throw new CflowError('CONFIG_INVALID', `layer ${beyond} of ${layers}`, { file, field: 'per_layer_config' });
}

/** What `per_layer_config` may say of a layer. */
const layerHeads = z.strictObject({ head_dim: optionalCount, num_key_value_heads: optionalCount });
export type LayerHeads = z.output<typeof layerHeads>;

export const decoderSchema = z.object({
  ...ropeFields,
  vocab_size: optionalCount,
  hidden_size: count,
  intermediate_size: optionalCount,
  num_hidden_layers: count.max(MAX_LAYERS),
  num_attention_heads: count,
  num_key_value_heads: optionalCount,
  head_dim: optionalCount,
  rms_norm_eps: limit,
  hidden_act: z.string(),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  tie_word_embeddings: z.boolean().default(false),
  /** Below 1 is refused where a layer slides. */
  sliding_window: z.int().nullish(),
  use_sliding_window: z.boolean().nullish(),
  max_window_layers: z.int().min(0).nullish(),
  layer_types: z.array(z.string()).nullish(),
  sliding_window_pattern: optionalCount,
  is_causal: z.boolean().nullish(),
  use_bidirectional_attention: z.union([z.boolean(), z.string()]).nullish(),
  no_rope_layers: perLayer.nullish(),
  no_rope_layer_interval: optionalCount,
  /** 0: none, whatever the class has. */
  num_experts: z.int().min(0).max(MAX_EXPERTS).nullish(),
  num_experts_per_tok: optionalCount,
  moe_intermediate_size: optionalCount,
  norm_topk_prob: z.boolean().nullish(),
  decoder_sparse_step: optionalCount,
  mlp_only_layers: perLayer.transform((layers) => new Set(layers)).nullish(),
  enable_moe_block: z.boolean().nullish(),
  clip_qkv: limit.nullish(),
  /** null too is no scale. */
  query_pre_attn_scalar: limit.optional(),
  attn_logit_softcapping: unlessNone(limit),
  final_logit_softcapping: unlessNone(limit),
  attention_k_eq_v: z.boolean().nullish(),
  global_head_dim: optionalCount,
  num_global_key_value_heads: optionalCount,
  per_layer_config: z.record(z.string(), layerHeads).nullish().transform(byLayer),
  num_kv_shared_layers: z.int().min(0).nullish(),
  use_double_wide_mlp: z.boolean().nullish(),
  hidden_size_per_layer_input: z.int().min(0).nullish(),
  vocab_size_per_layer_input: optionalCount,
});
export type DecoderJson = z.output<typeof decoderSchema>;

/** Other spellings, by the one that is read; the first that is there counts. */
export const ALIASES: Readonly<Record<string, readonly string[]>> = {
  num_experts: ['num_local_experts', 'n_routed_experts'],
  num_experts_per_tok: ['top_k_experts', 'num_experts_per_token'],
  sliding_window_pattern: ['_sliding_window_pattern'],
};

/** Spellings that win over the one that is read in classes that have them: Gemma's `hidden_act` is a leftover. */
export const PREFERRED: Readonly<Record<string, string>> = { hidden_act: 'hidden_activation' };

const present = (value: JsonValue | undefined) => value !== undefined && value !== null;

/**
 * config.json under one spelling, completed by the defaults of the class. null counts as said.
 * @throws CflowError CONFIG_INVALID for two spellings that contradict each other
 */
export function normalised(json: JsonObject, defaults: JsonObject, file: string): JsonObject {
  const own: JsonObject = { ...json };
  for (const [name, others] of Object.entries(ALIASES)) {
    const stated = [name, ...others].filter((spelling) => present(own[spelling]));
    const [first, second] = stated;
    if (second !== undefined && own[first!] !== own[second]) {
      throw new CflowError('CONFIG_INVALID', `${own[first!]}, but ${second} is ${own[second]}`, {
        file,
        field: first,
      });
    }
    const other = others.find((alias) => present(own[alias]));
    if (!present(own[name]) && other !== undefined) own[name] = own[other]!;
  }
  for (const [name, other] of Object.entries(PREFERRED)) {
    if (other in defaults) own[name] = present(own[other]) ? own[other]! : defaults[other]!;
  }
  return { ...defaults, ...own };
}

const tokenId = z.int();
export const tokenSchema = z.object({
  bos_token_id: tokenId.nullish(),
  eos_token_id: z.union([tokenId.transform((id) => [id]), z.array(tokenId)]).nullish(),
});
