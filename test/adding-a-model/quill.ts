import type { DecoderRow } from '../../packages/convert/src/families/decoder.js';

const at = (name: string) => `model.blocks.{layer}.${name}.weight`;
const THETA = { rope_theta: 10_000 };

/** A llama with names of its own, and a norm behind each sublayer besides the one before it. */
export const quill: DecoderRow = {
  modelType: 'quill',
  defaults: { hidden_act: 'silu', rms_norm_eps: 1e-6 },
  rope: { contextLength: 2048, parameters: { full_attention: THETA, sliding_attention: THETA } },
  norms: 'sandwich',
  prefixes: ['decoder.'],
  names: {
    'embed_tokens.weight': 'model.tokens.weight',
    'norm.weight': 'model.last_norm.weight',
    'lm_head.weight': 'lm_head.weight',
    'layers.{layer}.attn_norm.weight': at('norms.0'),
    'layers.{layer}.attn.q_proj.weight': at('mixer.query'),
    'layers.{layer}.attn.k_proj.weight': at('mixer.key'),
    'layers.{layer}.attn.v_proj.weight': at('mixer.value'),
    'layers.{layer}.attn.o_proj.weight': at('mixer.out'),
    'layers.{layer}.attn_post_norm.weight': at('norms.1'),
    'layers.{layer}.ffn_norm.weight': at('norms.2'),
    'layers.{layer}.ffn.gate_proj.weight': at('gate'),
    'layers.{layer}.ffn.up_proj.weight': at('up'),
    'layers.{layer}.ffn.down_proj.weight': at('down'),
    'layers.{layer}.ffn_post_norm.weight': at('norms.3'),
  },
};
