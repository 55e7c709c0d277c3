/** Which layers of a model slide, and what they have of their own. */
import type { DecoderJson, LayerHeads } from './fields.js';

export const isSlidingType = ({ layer_types }: DecoderJson, layer: number) =>
  layer_types?.[layer] === 'sliding_attention';

/** null says that no layer slides. */
export const windowed = ({ sliding_window }: DecoderJson) => sliding_window != null;

/** transformers takes a Mistral with a list of layer types for a Ministral, whose layers follow it. */
export const mistralSliding = (fields: DecoderJson, layer: number) =>
  fields.layer_types ? isSlidingType(fields, layer) : windowed(fields);

/** Qwen's windows are off unless asked for, and then begin at `max_window_layers`. */
export function qwenSliding(fields: DecoderJson, layer: number): boolean {
  if (!fields.use_sliding_window) return false;
  if (fields.layer_types) return isSlidingType(fields, layer);
  return windowed(fields) && layer >= (fields.max_window_layers ?? 0);
}

/** Every sixth layer is full, unless the config says otherwise. */
export function gemmaSliding(fields: DecoderJson, layer: number): boolean {
  if (fields.layer_types) return isSlidingType(fields, layer);
  return (layer + 1) % (fields.sliding_window_pattern ?? 6) !== 0;
}

/** The last layer is full whatever the list says. */
export function gemma4Sliding(fields: DecoderJson, layer: number): boolean {
  return layer < fields.num_hidden_layers - 1 && gemmaSliding(fields, layer);
}

/** Before transformers 5.18 full layers had fields of their own; since then any layer may have an override. */
export function gemma4Heads(fields: DecoderJson, layer: number): LayerHeads | undefined {
  if (fields.per_layer_config) return fields.per_layer_config.get(layer);
  if (gemma4Sliding(fields, layer)) return undefined;
  const { attention_k_eq_v: shared, num_global_key_value_heads: kvHeads } = fields;
  return { head_dim: fields.global_head_dim, num_key_value_heads: shared ? kvHeads : undefined };
}

/** Layers of one kind share a rotation, so transformers refuses overrides that differ among them. */
export function unlikeItsKind(fields: DecoderJson): string | undefined {
  const first = new Map<boolean, { layer: number; heads: string }>();
  for (let layer = 0; layer < fields.num_hidden_layers; layer++) {
    const sliding = gemma4Sliding(fields, layer);
    const { head_dim = fields.head_dim, num_key_value_heads = fields.num_key_value_heads } =
      gemma4Heads(fields, layer) ?? {};
    const heads = `head_dim ${head_dim}, num_key_value_heads ${num_key_value_heads}`;
    const other = first.get(sliding);
    if (!other) first.set(sliding, { layer, heads });
    else if (other.heads !== heads) {
      const kind = sliding ? 'sliding' : 'full';
      return `per_layer_config: layer ${layer} has ${heads}, layer ${other.layer} ${other.heads}: ${kind} layers must be alike`;
    }
  }
  return undefined;
}
