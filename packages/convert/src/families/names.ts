/** Canonical names → names of Hugging Face, in pieces that families put together. */
import type { FusedRule, NameTable } from './family.js';

const inLayer = (rest: string) => `model.layers.{layer}.${rest}`;

function projections(from: string, to: string, names: readonly string[]): NameTable {
  const kinds = names.flatMap((name) => ['weight', 'bias'].map((kind) => `${name}.${kind}`));
  return Object.fromEntries(
    kinds.map((name) => [`layers.{layer}.${from}.${name}`, inLayer(`${to}.${name}`)]),
  );
}

/** Norms of a layer: canonical → stored, without `.weight`. */
export function norms(names: Readonly<Record<string, string>>): NameTable {
  return Object.fromEntries(
    Object.entries(names).map(([own, stored]) => [
      `layers.{layer}.${own}.weight`,
      inLayer(`${stored}.weight`),
    ]),
  );
}

export const ATTENTION: NameTable = projections('attn', 'self_attn', [
  'q_proj',
  'k_proj',
  'v_proj',
  'o_proj',
]);
export const FFN: NameTable = projections('ffn', 'mlp', ['gate_proj', 'up_proj', 'down_proj']);
export const QK_NORMS: NameTable = norms({
  'attn.q_norm': 'self_attn.q_norm',
  'attn.k_norm': 'self_attn.k_norm',
});
export const PRE_NORMS: NameTable = norms({
  attn_norm: 'input_layernorm',
  ffn_norm: 'post_attention_layernorm',
});
export const VOCABULARY: NameTable = {
  'embed_tokens.weight': 'model.embed_tokens.weight',
  'norm.weight': 'model.norm.weight',
  'lm_head.weight': 'lm_head.weight',
};

export const LLAMA: NameTable = { ...VOCABULARY, ...PRE_NORMS, ...ATTENTION, ...FFN };

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
