/** Models of several modalities around a text decoder, and model types that cannot be read, with the reason. */
import { CflowError } from '@cflow/format';
import { isJsonObject, type JsonObject } from '../json.js';
import type { IgnoreRule } from './family.js';

/** `model_type` of a wrapper → that of its text part where `text_config` does not say one. */
const WRAPPERS: Readonly<Record<string, string>> = {
  gemma3: 'gemma3_text',
  gemma4: 'gemma4_text',
  mistral3: 'mistral',
  llava: 'llama',
  qwen2_vl: 'qwen2',
  qwen2_5_vl: 'qwen2',
  qwen3_vl: 'qwen3_vl_text',
  qwen3_vl_moe: 'qwen3_vl_moe_text',
};

/** Text parts that are a family under another name. */
const TEXT_TYPES: Readonly<Record<string, string>> = {
  qwen2_vl_text: 'qwen2',
  qwen2_5_vl_text: 'qwen2',
  qwen2_vl: 'qwen2',
  qwen2_5_vl: 'qwen2',
};

/** Tensors of the other modalities. */
export const OTHER_MODALITIES: IgnoreRule = {
  reason: 'parts for images and sound; only the text part is converted',
  patterns: [
    'vision_tower',
    'audio_tower',
    'embed_vision',
    'embed_audio',
    'multi_modal_projector',
    'visual',
  ].flatMap((name) => [`${name}.*`, `model.${name}.*`]),
};

const REFUSED: Readonly<Record<string, string>> = {
  gpt_oss:
    'attention sinks, biased experts and a clamped activation are not supported, and its weights come in MXFP4',
  deepseek_v3: 'latent attention (MLA) and routing by groups are not supported',
  deepseek_v2: 'latent attention (MLA) is not supported',
};

export interface TextConfig {
  readonly modelType: unknown;
  readonly json: JsonObject;
  readonly wrapped: boolean;
}

const OUTER = ['eos_token_id', 'bos_token_id', 'tie_word_embeddings'] as const;

/**
 * The text part of a config.json: what it says itself, token ids and ties of the whole model first.
 * @throws CflowError UNSUPPORTED for model types that are known not to work, with the reason
 */
export function textConfig(json: JsonObject, file: string): TextConfig {
  const type = json.model_type;
  if (typeof type !== 'string') return { modelType: type, json, wrapped: false };
  refuse(type, file);
  const fallback = Object.hasOwn(WRAPPERS, type) ? WRAPPERS[type] : undefined;
  if (fallback === undefined) return { modelType: named(type), json, wrapped: false };
  const inner = isJsonObject(json.text_config) ? json.text_config : json;
  const stated = typeof inner.model_type === 'string' && inner !== json ? inner.model_type : fallback;
  refuse(stated, file);
  const text: JsonObject = { ...inner };
  for (const key of OUTER) if (json[key] !== undefined && json[key] !== null) text[key] = json[key]!;
  return { modelType: named(stated), json: text, wrapped: true };
}

const named = (type: string) => (Object.hasOwn(TEXT_TYPES, type) ? TEXT_TYPES[type]! : type);

function refuse(type: string, file: string): void {
  if (!Object.hasOwn(REFUSED, type)) return;
  throw new CflowError('UNSUPPORTED', `${JSON.stringify(type)}: ${REFUSED[type]}`, {
    file,
    field: 'model_type',
    value: type,
  });
}
