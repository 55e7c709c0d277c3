import { modelTensors, parameterCount } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { checkpointName, FAMILIES, llama, readModelConfig } from '../src/families/index.js';
import { parseJsonObject } from '../src/json.js';

function read(json: object, generation?: object) {
  const parse = (value: object) =>
    parseJsonObject(new TextEncoder().encode(JSON.stringify(value)), { file: 'c' });
  return readModelConfig(parse({ model_type: 'llama', ...json }), {
    name: 'm',
    file: 'config.json',
    generation: generation && parse(generation),
  });
}
const config = (json: object, generation?: object) => read(json, generation).config;
const rope = (json: object) => config(json).layers[0]!.attention.rope;

/** The geometry of Llama 3.2 3B. */
const LLAMA_3B = {
  hidden_size: 3072,
  intermediate_size: 8192,
  num_hidden_layers: 28,
  num_attention_heads: 24,
  num_key_value_heads: 8,
  head_dim: 128,
  vocab_size: 128_256,
  max_position_embeddings: 131_072,
  rms_norm_eps: 1e-5,
  rope_theta: 500_000,
  rope_scaling: {
    rope_type: 'llama3',
    factor: 32,
    low_freq_factor: 1,
    high_freq_factor: 4,
    original_max_position_embeddings: 8192,
  },
  tie_word_embeddings: true,
  bos_token_id: 128_000,
  eos_token_id: [128_001, 128_008],
};

describe('llama', () => {
  it('reads the config of a 3B model and counts its parameters', () => {
    const model = config(LLAMA_3B);
    expect(parameterCount(model)).toBe(3_212_749_824);
    expect(model).toMatchObject({
      name: 'm',
      family: 'llama',
      combineStyle: 'sequential',
      contextLength: 131_072,
      normEps: 1e-5,
      tiedEmbeddings: true,
      bosTokenId: 128_000,
      eosTokenIds: [128_001, 128_008],
    });
    expect(model.layers).toHaveLength(28);
    expect(model.layers[27]).toMatchObject({
      attention: {
        heads: 24,
        kvHeads: 8,
        headDim: 128,
        scale: expect.closeTo(2 ** -3.5, 15),
        biasQkv: false,
        biasOut: false,
      },
      ffn: { dim: 8192, activation: 'silu', bias: false },
    });
    expect(model.layers[0]!.attention.rope).toEqual({
      theta: 500_000,
      rotaryDim: 128,
      scaling: {
        type: 'llama3',
        factor: 32,
        lowFreqFactor: 1,
        highFreqFactor: 4,
        originalContextLength: 8192,
      },
    });
  });

  it('takes the defaults of the class: Llama 1 7B has 6,738,415,616 parameters', () => {
    const model = config({});
    expect(parameterCount(model)).toBe(6_738_415_616);
    expect(model).toMatchObject({ normEps: 1e-6, contextLength: 2048, bosTokenId: 1, eosTokenIds: [2] });
    expect(model.layers[0]!.attention).toMatchObject({ kvHeads: 32, headDim: 128, rope: { theta: 10_000 } });
  });

  it('lets an explicit head_dim win over hidden_size / heads', () => {
    const shapes = (json: object) =>
      Object.fromEntries(modelTensors(config(json)).map(({ name, shape }) => [name, shape]));
    const geometry = { hidden_size: 2560, num_attention_heads: 32, num_key_value_heads: 8 };
    expect(shapes({ ...geometry, head_dim: 128 })['layers.0.attn.q_proj.weight']).toEqual([4096, 2560]);
    expect(shapes({ ...geometry, head_dim: null })['layers.0.attn.q_proj.weight']).toEqual([2560, 2560]);
    expect(config({ ...geometry, head_dim: 128 }).layers[0]!.attention.scale).toBeCloseTo(2 ** -3.5, 15);
    expect(() => config({ hidden_size: 100, num_attention_heads: 3 })).toThrow(
      'config.json: head_dim: hidden_size 100 is not a multiple of num_attention_heads 3 (state head_dim)',
    );
  });

  it.each<[string, object, object]>([
    ['v4 theta', { rope_theta: 5e5 }, { theta: 500_000, rotaryDim: 128 }],
    [
      'v5 theta',
      { rope_parameters: { rope_type: 'default', rope_theta: 5e5 } },
      { theta: 500_000, rotaryDim: 128 },
    ],
    [
      'null scaling',
      { rope_theta: 3, rope_scaling: null, rope_parameters: null },
      { theta: 3, rotaryDim: 128 },
    ],
    [
      'legacy type',
      { rope_scaling: { type: 'linear', factor: 4 } },
      { theta: 10_000, rotaryDim: 128, scaling: { type: 'linear', factor: 4 } },
    ],
    [
      'scaling in one, theta in the other',
      { rope_scaling: { rope_type: 'linear', factor: 2 }, rope_parameters: { rope_theta: 9 } },
      { theta: 9, rotaryDim: 128, scaling: { type: 'linear', factor: 2 } },
    ],
    [
      'theta above parameters without one',
      { rope_theta: 5e5, rope_parameters: { rope_type: 'linear', factor: 2 } },
      { theta: 5e5, rotaryDim: 128, scaling: { type: 'linear', factor: 2 } },
    ],
    ['type null', { rope_scaling: { type: null } }, { theta: 10_000, rotaryDim: 128 }],
    [
      'both names of no scaling',
      { rope_scaling: { type: 'mrope', rope_type: 'default' } },
      { theta: 10_000, rotaryDim: 128 },
    ],
    [
      'llama3 without an original context',
      {
        max_position_embeddings: 4096,
        rope_parameters: { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4 },
      },
      {
        theta: 10_000,
        rotaryDim: 128,
        scaling: {
          type: 'llama3',
          factor: 8,
          lowFreqFactor: 1,
          highFreqFactor: 4,
          originalContextLength: 4096,
        },
      },
    ],
    ['the whole head, whatever is said', { partial_rotary_factor: 0.25 }, { theta: 10_000, rotaryDim: 128 }],
  ])('reads RoPE: %s', (_name, json, expected) => {
    expect(rope(json)).toEqual(expected);
  });

  it.each<[object, string]>([
    [
      { rope_scaling: { rope_type: 'longrope', factor: 4 } },
      'config.json: rope_scaling.rope_type: "longrope" is not supported (supported: default, mrope, linear, llama3,',
    ],
    [
      { rope_parameters: { rope_type: 'su' } },
      'config.json: rope_parameters.rope_type: "su" is not supported',
    ],
    [
      { hidden_act: 'relu' },
      'config.json: hidden_act: "relu" is not supported (supported: silu, swish, gelu,',
    ],
    [
      { model_type: 'mamba' },
      'config.json: model_type: "mamba" is not supported (supported: llama, mistral,',
    ],
    [{ model_type: 'gpt_oss' }, 'config.json: model_type: "gpt_oss": attention sinks, biased experts'],
    [{ model_type: 'deepseek_v3' }, 'config.json: model_type: "deepseek_v3": latent attention (MLA)'],
    [{ model_type: 'toString' }, 'config.json: model_type: "toString" is not supported'],
  ])('refuses %j by name', (json, message) => {
    expect(() => read(json)).toThrow(
      expect.objectContaining({ code: 'UNSUPPORTED', message: expect.stringContaining(message) }),
    );
  });

  it.each<[object, string]>([
    [{ rope_scaling: { factor: 4 } }, 'rope_scaling.rope_type: factor without a type of scaling'],
    [{ rope_scaling: { type: null, factor: 4 } }, 'rope_scaling.rope_type: factor without a type'],
    [{ rope_parameters: { rope_theta: 1e4, factor: 4 } }, 'rope_parameters.rope_type: factor without a type'],
    [
      { rope_scaling: { rope_type: 'linear', type: 'yarn', factor: 4 } },
      'rope_type is linear, but type is yarn',
    ],
    [
      { rope_scaling: { rope_type: 'linear', facter: 4 } },
      'rope_scaling.facter: not a parameter of the rotation',
    ],
    [
      { rope_theta: 1, rope_parameters: { rope_theta: 2 } },
      'rope_parameters.rope_theta: 2, but rope_theta is 1 outside of it',
    ],
    [
      { rope_scaling: { type: 'linear', factor: 2 }, rope_parameters: { rope_type: 'linear', factor: 4 } },
      'rope_scaling.factor: 2, but 4 in rope_parameters',
    ],
    [{ layer_types: [] }, 'layer_types: has 0 entries for 32 layers (num_hidden_layers)'],
    [{ layer_types: Array(33).fill('full_attention') }, 'layer_types: has 33 entries for 32 layers'],
    [{ num_experts: 8, num_local_experts: 4 }, 'num_experts: 8, but num_local_experts is 4'],
  ])('refuses %j, which contradicts itself', (json, message) => {
    expect(() => read(json)).toThrow(
      expect.objectContaining({ code: 'CONFIG_INVALID', message: expect.stringContaining(message) }),
    );
  });

  it('refuses kinds of layers that it does not know', () => {
    const layer_types = [...Array(31).fill('full_attention'), 'linear_attention'];
    expect(() => read({ layer_types })).toThrow(
      'config.json: layer_types[31]: "linear_attention" is not supported',
    );
  });

  it('refuses what is too much before it builds anything', () => {
    const huge = {
      model_type: 'qwen3_moe',
      num_hidden_layers: 65_535,
      num_experts: 255,
      moe_intermediate_size: 8,
    };
    const started = process.memoryUsage().heapUsed;
    expect(() => read(huge)).toThrow('65535 layers with 255 experts are 16842495 streams, at most 262144');
    expect(process.memoryUsage().heapUsed - started).toBeLessThan(50e6);
    // Of 65,535 layers one is dense, however often it is named: 65,535 · 2 + 65,534 · 255.
    expect(() => read({ ...huge, mlp_only_layers: Array(65_535).fill(0) })).toThrow('are 16842240 streams');
    expect(() => read({ ...huge, num_experts: 255_000 })).toThrow('num_experts: ');
  });

  it('says which defaults it used, and what it ignored', () => {
    const context = { name: 'x', file: 'config.json' };
    const { notes } = readModelConfig(
      parseJsonObject(
        Buffer.from('{"model_type": "llama", "rope_theta": 5, "residual_multiplier": 2, "use_cache": true}'),
        { file: 'config.json' },
      ),
      context,
    );
    expect(notes[0]).toMatch(/^config\.json does not state .*rms_norm_eps 0\.000001.*: defaults of llama$/);
    expect(notes[0]).not.toContain('rope_theta');
    expect(notes[1]).toBe('config.json: residual_multiplier without effect in llama: ignored');
  });

  it('names every wrong field', () => {
    const act = () => read({ hidden_size: '4096', num_hidden_layers: 0, rope_theta: -1 });
    expect(act).toThrow(expect.objectContaining({ code: 'CONFIG_INVALID' }));
    expect(act).toThrow(/^config\.json: rope_theta: .*; hidden_size: .*; num_hidden_layers: /);
    expect(() => read({ model_type: undefined })).not.toThrow('TypeError');
    expect(() => read({ model_type: 7 })).toThrow('config.json: model_type: missing or not a string');
    expect(() => read({ num_hidden_layers: 2 ** 31 })).toThrow('num_hidden_layers: ');
    expect(() => read({ rope_scaling: { rope_type: 'linear' } })).toThrow(
      'config.json: rope_scaling: factor: ',
    );
  });

  it('reads activations, biases and token ids', () => {
    const model = config({
      hidden_act: 'gelu_pytorch_tanh',
      attention_bias: true,
      mlp_bias: true,
      eos_token_id: null,
    });
    expect(model.layers[0]).toMatchObject({
      attention: { biasQkv: true, biasOut: true },
      ffn: { activation: 'gelu_tanh', bias: true },
    });
    expect(model.eosTokenIds).toEqual([]);
    expect(config({ hidden_act: 'gelu' }).layers[0]!.ffn!.activation).toBe('gelu');
    expect(config({ eos_token_id: 5 }).eosTokenIds).toEqual([5]);
    const generated = config({ eos_token_id: 5, bos_token_id: 3 }, { eos_token_id: [6, 7] });
    expect(generated).toMatchObject({ eosTokenIds: [6, 7, 5], bosTokenId: 3 });
  });

  it('names its tensors as Hugging Face does', () => {
    const model = config({ num_hidden_layers: 12, attention_bias: true, mlp_bias: true });
    const names = modelTensors(model).map(({ name }) => checkpointName(llama, name));
    expect(names).toContain('model.layers.11.self_attn.o_proj.bias');
    expect(names).toContain('model.layers.10.mlp.down_proj.weight');
    expect(checkpointName(llama, 'layers.3.attn_norm.weight')).toBe('model.layers.3.input_layernorm.weight');
    expect(checkpointName(llama, 'layers.3.ffn_norm.weight')).toBe(
      'model.layers.3.post_attention_layernorm.weight',
    );
    expect(checkpointName(llama, 'lm_head.weight')).toBe('lm_head.weight');
    expect(() => checkpointName(llama, 'layers.0.router.weight')).toThrow(
      'checkpoints of llama have no layers.0.router.weight',
    );
  });
});

describe('a new family', () => {
  it('is a row: names with layer and expert numbers come from its table', () => {
    const mixtral = {
      ...llama,
      tensorNames: {
        'layers.{layer}.experts.{expert}.gate_proj.weight':
          'model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight',
      },
    };
    expect(checkpointName(mixtral, 'layers.31.experts.7.gate_proj.weight')).toBe(
      'model.layers.31.block_sparse_moe.experts.7.w1.weight',
    );
  });
});

describe('cflow', () => {
  const attention = { heads: 2, kvHeads: 2, headDim: 4, scale: 0.5 };
  const ffn = { dim: 16, activation: 'gelu' };
  const json = {
    model_type: 'cflow',
    hiddenDim: 8,
    vocabSize: 10,
    contextLength: 64,
    normEps: 1e-6,
    combineStyle: 'delayedSum',
    denseDelay: 1,
    layers: [{ attention, ffn }],
  };

  it('takes config.json as the model configuration, and the names as they are', () => {
    const { family, config: model } = read(json);
    expect(model).toMatchObject({ name: 'm', family: 'cflow', hiddenDim: 8, denseDelay: 1 });
    // 2 norms of 8, q/k/v/o of 8 × 8, three of 16 × 8, final norm, embedding and head of 10 × 8.
    expect(parameterCount(model)).toBe(2 * 8 + 4 * 64 + 3 * 128 + 8 + 2 * 80);
    expect(checkpointName(family, 'layers.0.experts.3.up_proj.weight')).toBe(
      'layers.0.experts.3.up_proj.weight',
    );
    expect(Object.keys(FAMILIES)).toEqual(expect.arrayContaining(['llama', 'cflow']));
  });

  it('refuses unknown and wrong fields', () => {
    expect(() => read({ ...json, hidenDim: 8 })).toThrow(
      /^config\.json: not a valid model configuration: .*hidenDim/,
    );
    expect(() => read({ ...json, layers: [] })).toThrow('layers: ');
  });
});
