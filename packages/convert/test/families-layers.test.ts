/** Overrides of single layers in config.json; what transformers 5.18 reads from them, by hand. */
import { describe, expect, it } from 'vitest';
import { readModelConfig } from '../src/families/index.js';
import type { JsonObject } from '../src/json.js';

const GEMMA4 = {
  model_type: 'gemma4_text',
  num_hidden_layers: 12,
  num_key_value_heads: 4,
  head_dim: 256,
  hidden_size_per_layer_input: 0,
};
const read = (json: object) =>
  readModelConfig({ ...GEMMA4, ...json } as JsonObject, { name: 'm', file: 'config.json' });
/** Head dimension and key/value heads of each layer. */
const heads = (json: object) =>
  read(json).config.layers.map(({ attention: { headDim, kvHeads } }) => [headDim, kvHeads]);
/** Twelve layers, of which every sixth is full. */
const layers = (sliding: number[], full: number[]) =>
  Array.from({ length: 12 }, (_, i) => (i % 6 === 5 ? full : sliding));

describe('per_layer_config', () => {
  it.each<[string, object, number[][]]>([
    ['absent: the class', {}, layers([256, 4], [512, 4])],
    ['global_head_dim, before it was there', { global_head_dim: 64 }, layers([256, 4], [64, 4])],
    [
      'padded keys',
      { per_layer_config: { '05': { head_dim: 32 }, 11: { head_dim: 32 } } },
      layers([256, 4], [32, 4]),
    ],
    [
      'plain keys',
      { per_layer_config: { 5: { head_dim: 32 }, 11: { head_dim: 32 } } },
      layers([256, 4], [32, 4]),
    ],
    ['nothing stated of any layer', { per_layer_config: {} }, layers([256, 4], [256, 4])],
    ['null', { per_layer_config: null }, layers([256, 4], [256, 4])],
    [
      'sliding layers too',
      {
        per_layer_config: Object.fromEntries(
          Array.from({ length: 12 }, (_, i) => [
            String(i).padStart(2, '0'),
            i % 6 === 5 ? { head_dim: 32 } : { head_dim: 64, num_key_value_heads: 2 },
          ]),
        ),
      },
      layers([64, 2], [32, 4]),
    ],
  ])('%s', (_name, json, expected) => {
    expect(heads(json)).toEqual(expected);
  });

  it('wins over global_head_dim, which is said to be ignored', () => {
    const json = { global_head_dim: 64, per_layer_config: { '05': { head_dim: 32 }, 11: { head_dim: 32 } } };
    expect(heads(json)).toEqual(layers([256, 4], [32, 4]));
    expect(read(json).notes).toContain('config.json: global_head_dim without effect in gemma4_text: ignored');
  });

  it.each<[string, string, object]>([
    [
      'CONFIG_INVALID',
      '"05" is not the number of one layer',
      { 5: { head_dim: 32 }, '05': { head_dim: 16 } },
    ],
    ['CONFIG_INVALID', '"x" is not the number of one layer', { x: { head_dim: 32 } }],
    ['CONFIG_INVALID', 'per_layer_config: layer 12 of 12', { 12: { head_dim: 32 } }],
    ['CONFIG_INVALID', 'intermediate_size', { 5: { intermediate_size: 32 } }],
    [
      'UNSUPPORTED',
      'per_layer_config: layer 11 has head_dim 256, num_key_value_heads 4, layer 5 head_dim 32, num_key_value_heads 4: full layers must be alike',
      { '05': { head_dim: 32 } },
    ],
    ['UNSUPPORTED', 'sliding layers must be alike', { '00': { num_key_value_heads: 2 } }],
  ])('refuses (%s): %s', (code, message, per_layer_config) => {
    expect(() => read({ per_layer_config })).toThrow(
      expect.objectContaining({ code, message: expect.stringContaining(message) }),
    );
  });
});
