/** What config.json says in vain or in contradiction; expected effects are those of transformers 5.18. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { readModelConfig } from '../src/families/index.js';
import { type JsonObject, parseJsonObject } from '../src/json.js';

const LAYERS = {
  num_hidden_layers: 3,
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
};
const FULL = Array(3).fill('full_attention');
const MIXED = ['full_attention', 'sliding_attention', 'full_attention'];
const read = (json: object) =>
  readModelConfig({ ...LAYERS, ...json } as JsonObject, { name: 'm', file: 'config.json' });
const windows = (json: object) => read(json).config.layers.map(({ attention }) => attention.slidingWindow);
const notes = (json: object) => read(json).notes.filter((note) => !note.includes('does not state'));

describe('layers with a window', () => {
  const none = Array(3).fill(undefined);
  const all = Array(3).fill(8);
  it.each<[string, object, (number | undefined)[]]>([
    ['mistral', { sliding_window: 8 }, all],
    ['mistral', { sliding_window: null }, none],
    ['mistral', { sliding_window: 8, layer_types: FULL }, none],
    ['mistral', { sliding_window: 8, layer_types: MIXED }, [undefined, 8, undefined]],
    ['mixtral', { sliding_window: 8, layer_types: FULL }, all],
    ['mixtral', {}, none],
    ['qwen3', { use_sliding_window: true, sliding_window: 8, layer_types: MIXED }, [undefined, 8, undefined]],
    ['qwen3', { use_sliding_window: false, sliding_window: 0 }, none],
    ['qwen3_moe', { use_sliding_window: true, sliding_window: 8, layer_types: FULL }, all],
    ['gemma2', { sliding_window: null, layer_types: FULL }, none],
  ])('%s %j', (model_type, json, expected) => {
    expect(windows({ model_type, ...json })).toEqual(expected);
  });

  it.each<[string, object, string]>([
    ['mistral', { sliding_window: 0 }, '0, but layer 0 slides'],
    ['mistral', { sliding_window: -1 }, '-1, but layer 0 slides'],
    ['mistral', { sliding_window: null, layer_types: MIXED }, 'null, but layer 1 slides'],
    ['qwen2', { use_sliding_window: true, sliding_window: null, layer_types: MIXED }, 'null, but layer 1'],
    ['gemma2', { sliding_window: 0 }, '0, but layer 0 slides'],
    ['gemma3_text', { sliding_window: null, layer_types: MIXED }, 'null, but layer 1 slides'],
  ])('%s %j is a contradiction', (model_type, json, message) => {
    expect(() => read({ model_type, ...json })).toThrow(
      expect.objectContaining({
        code: 'CONFIG_INVALID',
        message: expect.stringContaining(`config.json: sliding_window: ${message}`),
      }),
    );
  });
});

describe('refused', () => {
  it.each([
    ['UNSUPPORTED', { model_type: 'llama', is_causal: false }, 'is_causal: false: bidirectional attention'],
    ['CONFIG_INVALID', { model_type: 'gemma2', query_pre_attn_scalar: 0 }, 'query_pre_attn_scalar: '],
    ['CONFIG_INVALID', { model_type: 'gemma3_text', query_pre_attn_scalar: -2 }, 'query_pre_attn_scalar: '],
    ['CONFIG_INVALID', { model_type: 'gemma3_text', query_pre_attn_scalar: null }, 'query_pre_attn_scalar: '],
    [
      'UNSUPPORTED',
      {
        model_type: 'llama',
        partial_rotary_factor: 0.5,
        rope_parameters: { rope_type: 'linear', factor: 2, rope_theta: 1e4 },
      },
      'partial_rotary_factor: 0.5 with rope_type linear',
    ],
  ])('%s %j', (code, json, message) => {
    expect(() => read(json)).toThrow(
      expect.objectContaining({ code, message: expect.stringContaining(message) }),
    );
  });
});

describe('notes', () => {
  it.each<[object, string]>([
    [{ model_type: 'qwen3', partial_rotary_factor: 0.5 }, 'partial_rotary_factor 0.5 without effect'],
    [
      { model_type: 'mistral', rope_parameters: { rope_theta: 1e4, partial_rotary_factor: 0.5 } },
      'partial_rotary_factor 0.5 without effect',
    ],
    [{ model_type: 'mixtral', norm_topk_prob: false }, 'norm_topk_prob without effect'],
    [{ model_type: 'mistral', use_sliding_window: false, sliding_window: 8 }, 'use_sliding_window without'],
    [{ model_type: 'mixtral', sliding_window: 8, layer_types: FULL }, 'layer_types without effect'],
    [{ model_type: 'qwen3', use_sliding_window: false, layer_types: MIXED }, 'layer_types without effect'],
    [{ model_type: 'gemma2', hidden_act: 'silu' }, 'hidden_act without effect'],
    [{ model_type: 'llama', hidden_activation: 'gelu' }, 'hidden_activation without effect'],
    [{ model_type: 'llama', constructor: 1 }, 'constructor without effect'],
    [
      { model_type: 'llama', rope_scaling: { rope_type: 'dynamic', factor: 2 } },
      'base grows with each position',
    ],
  ])('%j', (json, note) => {
    expect(notes(json).join()).toContain(note);
    expect(read(json).config.layers[0]!.attention.rope!.rotaryDim).toBe(16);
  });

  it.each([
    { model_type: 'gemma2', hidden_activation: 'gelu_pytorch_tanh', hidden_act: 'gelu_pytorch_tanh' },
    { model_type: 'qwen3_moe', use_sliding_window: false, max_window_layers: 3 },
    { model_type: 'qwen3_moe', intermediate_size: 64, moe_intermediate_size: 16 },
    { model_type: 'llama', use_sliding_window: false, layer_types: FULL },
    { model_type: 'mistral', layer_types: FULL },
    { model_type: 'mistral', layer_types: FULL, sliding_window: 8 },
    { model_type: 'qwen2', use_sliding_window: false, sliding_window: 8 },
  ])('none of %j', (json) => {
    expect(notes(json)).toEqual([]);
  });

  it('says which activation is the default', () => {
    const [note] = read({ model_type: 'gemma3_text' }).notes;
    expect(note).toContain('hidden_activation "gelu_pytorch_tanh"');
    expect(note).not.toContain('silu');
  });

  // Written by transformers, unmodified.
  it.each([
    'gemma',
    'gemma2',
    'gemma3',
    'gemma4',
    'gemma4_moe',
    'gemma4_overridden',
    'gemma4_ple',
    'llama3',
    'mistral',
    'mixtral',
    'olmo2',
    'olmoe',
    'qwen2',
    'qwen3',
    'qwen3_moe_raw',
    'qwen3_vl_moe',
    'smollm3',
  ])('none of what transformers writes: %s', (name) => {
    const file = new URL(`../../runtime-native/test/golden/hf/${name}/config.json`, import.meta.url);
    const json = parseJsonObject(readFileSync(file), { file: 'config.json' });
    expect(readModelConfig(json, { name, file: 'config.json' }).notes).toEqual([]);
  });
});
