/** Canonical names → names of Hugging Face, in pieces that families put together. */
import type { FusedRule, NameTable } from './family.js';

const inLayer = (rest: string) => `model.layers.{layer}.${rest}`;

/** Weights and biases of projections: canonical `layers.{layer}.<from>.…` → stored `model.layers.{layer}.<to>.…`. */
export function projections(from: string, to: string, names: readonly string[]): NameTable {
  const kinds = names.flatMap((name) => ['weight', 'bias'].map((kind) => `${name}.${kind}`));
  return Object.fromEntries(
    kinds.map((name) => [`layers.{layer}.${from}.${name}`, inLayer(`${to}.${name}`)]),
  );
}

/**
 * Tensors of a layer that have a weight alone, above all norms: canonical → stored, both without `layers.{layer}.` and
 * `.weight`. `norms({ 'attn.q_proj': 'mixer.query' })` renames a projection too, but not its bias: see `projections`.
 */
export function norms(names: Readonly<Record<string, string>>): NameTable {
  return Object.fromEntries(
    Object.entries(names).map(([own, stored]) => [
      `layers.{layer}.${own}.weight`,
      inLayer(`${stored}.weight`),
    ]),
  );
}

/** Projections of attention as llama calls them. */
export const ATTENTION: NameTable = projections('attn', 'self_attn', [
  'q_proj',
  'k_proj',
  'v_proj',
  'o_proj',
]);
/** Projections of the FFN as llama calls them. */
export const FFN: NameTable = projections('ffn', 'mlp', ['gate_proj', 'up_proj', 'down_proj']);
/** Norms of q and k, for rows with `qkNorm`. */
export const QK_NORMS: NameTable = norms({
  'attn.q_norm': 'self_attn.q_norm',
  'attn.k_norm': 'self_attn.k_norm',
});
/** The two norms of a llama's layer. */
export const PRE_NORMS: NameTable = norms({
  attn_norm: 'input_layernorm',
  ffn_norm: 'post_attention_layernorm',
});
/** Embedding, final norm, LM head. */
export const VOCABULARY: NameTable = {
  'embed_tokens.weight': 'model.embed_tokens.weight',
  'norm.weight': 'model.norm.weight',
  'lm_head.weight': 'lm_head.weight',
};

/** All tensors of a llama. */
export const LLAMA: NameTable = { ...VOCABULARY, ...PRE_NORMS, ...ATTENTION, ...FFN };

/** The router's matrix; `name` is that within the layer. */
export const router = (name: string): NameTable => ({ 'layers.{layer}.router.weight': inLayer(name) });

/** One tensor per expert and matrix. */
export function expertsApart(prefix: string, names: readonly [string, string, string]): NameTable {
  const own = ['gate_proj', 'up_proj', 'down_proj'];
  return Object.fromEntries(
    own.map((name, i) => [
      `layers.{layer}.experts.{expert}.${name}.weight`,
      inLayer(`${prefix}.{expert}.${names[i]}.weight`),
    ]),
  );
}

/** Two tensors for all experts of a layer, gate above up in one of them. */
export function expertsFused(prefix: string, order: FusedRule['order']): NameTable {
  const rule = (name: string, part: FusedRule['part']) => ({
    name: inLayer(`${prefix}.${name}`),
    part,
    order,
  });
  return {
    'layers.{layer}.experts.{expert}.gate_proj.weight': rule('gate_up_proj', [0, 2]),
    'layers.{layer}.experts.{expert}.up_proj.weight': rule('gate_up_proj', [1, 2]),
    'layers.{layer}.experts.{expert}.down_proj.weight': rule('down_proj', [0, 1]),
  };
}

export const LINEAR_NAMES = ['gate_proj', 'up_proj', 'down_proj'] as const;
