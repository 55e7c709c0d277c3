/** Llama 1 to 3.x and whatever else is saved as `model_type: llama`. Defaults are those of the class in transformers. */
import { type Activation, CflowError, MAX_LAYERS, type ModelConfigInput } from '@cflow/format';
import { z } from 'zod';
import type { JsonObject } from '../json.js';
import { type ConfigContext, type Family, lookUp, readFields } from './family.js';
import { ropeFields, ropeFrom } from './rope.js';

const count = z.int().min(1);
const tokenId = z.int().min(0);

const schema = z.object({
  ...ropeFields,
  vocab_size: count.default(32_000),
  hidden_size: count.default(4_096),
  intermediate_size: count.default(11_008),
  num_hidden_layers: count.max(MAX_LAYERS).default(32),
  num_attention_heads: count.default(32),
  num_key_value_heads: count.nullish(),
  head_dim: count.nullish(),
  rms_norm_eps: z.number().positive().default(1e-6),
  hidden_act: z.string().default('silu'),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  tie_word_embeddings: z.boolean().default(false),
  quantization_config: z.unknown().optional(),
});
type LlamaJson = z.output<typeof schema>;

const tokenSchema = z.object({
  bos_token_id: tokenId.nullish(),
  eos_token_id: z.union([tokenId.transform((id) => [id]), z.array(tokenId)]).nullish(),
});
const TOKEN_DEFAULTS = { bos_token_id: 1, eos_token_id: [2] };
const ROPE_DEFAULTS = { theta: 10_000, contextLength: 2_048 };

/** `hidden_act` → activation. */
export const ACTIVATION_NAMES: Readonly<Record<string, Activation>> = {
  silu: 'silu',
  swish: 'silu',
  gelu: 'gelu',
  gelu_new: 'gelu_tanh',
  gelu_pytorch_tanh: 'gelu_tanh',
};

function configFrom(json: JsonObject, context: ConfigContext): ModelConfigInput {
  const { file, name } = context;
  const fields = readFields(schema, json, file);
  refuseQuantized(fields.quantization_config, file);
  const layer = layerFrom(fields, file);
  const tokens = tokensFrom(json, context);
  return {
    name,
    family: 'llama',
    hiddenDim: fields.hidden_size,
    vocabSize: fields.vocab_size,
    contextLength: fields.max_position_embeddings ?? ROPE_DEFAULTS.contextLength,
    normEps: fields.rms_norm_eps,
    tiedEmbeddings: fields.tie_word_embeddings,
    combineStyle: 'sequential',
    ...tokens,
    layers: Array.from({ length: fields.num_hidden_layers }, () => layer),
  };
}

function layerFrom(fields: LlamaJson, file: string): ModelConfigInput['layers'][number] {
  const heads = fields.num_attention_heads;
  const headDim = fields.head_dim ?? dividedHeadDim(fields, file);
  return {
    attention: {
      heads,
      kvHeads: fields.num_key_value_heads ?? heads,
      headDim,
      rope: ropeFrom(fields, headDim, ROPE_DEFAULTS, file),
      scale: 1 / Math.sqrt(headDim),
      biasQkv: fields.attention_bias,
      biasOut: fields.attention_bias,
    },
    ffn: {
      dim: fields.intermediate_size,
      activation: lookUp(ACTIVATION_NAMES, fields.hidden_act, 'hidden_act', file),
      bias: fields.mlp_bias,
    },
  };
}

function dividedHeadDim({ hidden_size, num_attention_heads }: LlamaJson, file: string): number {
  if (hidden_size % num_attention_heads === 0) return hidden_size / num_attention_heads;
  throw new CflowError(
    'CONFIG_INVALID',
    `hidden_size ${hidden_size} is not a multiple of num_attention_heads ${num_attention_heads}`,
    { file, field: 'head_dim', remedy: 'state head_dim' },
  );
}

/** generation_config.json first: it is what generation really stops at. Absent means the class default, null none. */
function tokensFrom(json: JsonObject, { file, generation }: ConfigContext) {
  const general = { ...TOKEN_DEFAULTS, ...json };
  const own = readFields(tokenSchema, general, file);
  const generated = readFields(tokenSchema, generation ?? {}, 'generation_config.json');
  const bos = generated.bos_token_id ?? own.bos_token_id;
  return {
    ...(typeof bos === 'number' && { bosTokenId: bos }),
    eosTokenIds: generated.eos_token_id ?? own.eos_token_id ?? [],
  };
}

function refuseQuantized(quantization: unknown, file: string): void {
  if (quantization === undefined || quantization === null) return;
  const method = z.looseObject({ quant_method: z.string() }).safeParse(quantization).data?.quant_method;
  throw new CflowError('UNSUPPORTED', `the checkpoint is already quantized (${method ?? 'unknown method'})`, {
    file,
    field: 'quantization_config',
    value: method,
    remedy: 'convert the original in BF16, F16 or F32',
  });
}

const layer = (rest: string) => `model.layers.{layer}.${rest}`;
const projections = (from: string, to: string, names: readonly string[]) =>
  names.flatMap((name) =>
    ['weight', 'bias'].map((kind) => [
      `layers.{layer}.${from}.${name}.${kind}`,
      layer(`${to}.${name}.${kind}`),
    ]),
  );

export const llama: Family = {
  modelType: 'llama',
  configFrom,
  tensorNames: Object.fromEntries([
    ['embed_tokens.weight', 'model.embed_tokens.weight'],
    ['norm.weight', 'model.norm.weight'],
    ['lm_head.weight', 'lm_head.weight'],
    ['layers.{layer}.attn_norm.weight', layer('input_layernorm.weight')],
    ['layers.{layer}.ffn_norm.weight', layer('post_attention_layernorm.weight')],
    ...projections('attn', 'self_attn', ['q_proj', 'k_proj', 'v_proj', 'o_proj']),
    ...projections('ffn', 'mlp', ['gate_proj', 'up_proj', 'down_proj']),
  ]),
  // Old exports stored the RoPE table; it follows from the configuration.
  ignorable: ['*.rotary_emb.inv_freq'],
};
