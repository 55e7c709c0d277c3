/** Sources in eight bits, sources that are refused, and tensors that share a stored one. */

import { directory, safetensors, TINY_CONFIG, tinyTensors } from '@cflow/test-kit/checkpoint';
import { describe, expect, it } from 'vitest';
import { openCheckpoint } from '../src/sources/checkpoint.js';
import { DECODERS } from '../src/sources/safetensors-dtype.js';

const open = async (tensors: ReturnType<typeof tinyTensors>, config: object = TINY_CONFIG) =>
  openCheckpoint(await directory({ 'config.json': config, 'model.safetensors': safetensors(tensors) }));
const GATE = 'model.layers.0.mlp.gate_proj.weight';

describe('eight-bit floats', () => {
  it('E4M3: every power, subnormals, the largest, NaN', () => {
    const bytes = Uint8Array.of(0x00, 0x01, 0x07, 0x08, 0x38, 0x3c, 0x7e, 0xb8, 0xfe, 0x80);
    const values = [0, 2 ** -9, 7 * 2 ** -9, 2 ** -6, 1, 1.5, 448, -1, -448, -0];
    expect([...DECODERS.F8_E4M3!(bytes)]).toEqual(values);
    expect([...DECODERS.F8_E4M3!(Uint8Array.of(0x7f, 0xff))]).toEqual([Number.NaN, Number.NaN]);
  });

  it('E5M2: as the upper byte of an f16', () => {
    const bytes = Uint8Array.of(0x00, 0x01, 0x04, 0x3c, 0x3e, 0x7b, 0xbc, 0x7c, 0xfc);
    const infinite = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    expect([...DECODERS.F8_E5M2!(bytes)]).toEqual([0, 2 ** -16, 2 ** -14, 1, 1.5, 57_344, -1, ...infinite]);
  });
});

describe('block scales', () => {
  const fp8 = { ...TINY_CONFIG, quantization_config: { quant_method: 'fp8', weight_block_size: [2, 4] } };
  /** 1 everywhere, [5, 6]: three by two blocks of 2 × 4. */
  const ones = { dtype: 'F8_E4M3', shape: [5, 6], raw: new Uint8Array(30).fill(0x38) };
  const scales = { shape: [3, 2], values: [1, 2, 3, 4, 5, 6] };

  it('multiply their block, ragged ones too', async () => {
    const source = await open({ ...tinyTensors(), [GATE]: ones, [`${GATE}_scale_inv`]: scales }, fp8);
    expect([...(await source.rowsF32('layers.0.ffn.gate_proj.weight', 1, 3))]).toEqual([
      ...[1, 1, 1, 1, 2, 2],
      ...[3, 3, 3, 3, 4, 4],
      ...[3, 3, 3, 3, 4, 4],
    ]);
    expect([...(await source.rowsF32('layers.0.ffn.gate_proj.weight', 4, 1))]).toEqual([5, 5, 5, 5, 6, 6]);
    expect(source.rowsInFile('layers.0.ffn.gate_proj.weight', 0, 5)).toBeUndefined();
    expect(source.rowsInFile('layers.0.ffn.up_proj.weight', 0, 5)).toBeDefined();
    await source.close();
  });

  const at = `${GATE}_scale_inv`;
  it.each<[string, ReturnType<typeof tinyTensors>, string]>([
    [
      'too few',
      { [GATE]: ones, [at]: { shape: [2, 2] } },
      `${at}, the scales of ${GATE}, are [2,2], not [3,2]`,
    ],
    [
      'integers',
      { [GATE]: ones, [at]: { dtype: 'I32', shape: [3, 2] } },
      'have the dtype I32, not F32, BF16, F16',
    ],
    ['missing', { [GATE]: ones }, `missing ${at}, the scales of ${GATE} (F8_E4M3)`],
    ['of an F32 weight', { [at]: { shape: [3, 2] } }, `surplus ${at}: ${GATE} is F32 and has no scales`],
    [
      'of a norm',
      { 'model.norm.weight_scale_inv': { shape: [1] } },
      'model.norm.weight is F32 and has no scales',
    ],
    [
      'of nothing',
      { 'model.x.weight_scale_inv': { shape: [1] } },
      'the model has no model.x.weight to scale',
    ],
  ])('are refused before any work: %s', async (_name, change, message) => {
    const files = { 'config.json': fp8, 'model.safetensors': safetensors({ ...tinyTensors(), ...change }) };
    for (const dryRun of [false, true]) {
      await expect(openCheckpoint(await directory(files), { dryRun })).rejects.toMatchObject({
        code: 'TENSOR_MISMATCH',
        message: expect.stringContaining(message),
      });
    }
  });

  it('may be one a tensor, and powers of two alone (UE8M0: 2^(byte − 127))', async () => {
    const each = { ...fp8, quantization_config: { quant_method: 'fp8', weight_block_size: null } };
    const scalar = { dtype: 'F8_E8M0', shape: [], raw: Uint8Array.of(129) };
    const source = await open({ ...tinyTensors(), [GATE]: ones, [at]: scalar }, each);
    expect([...(await source.rowsF32('layers.0.ffn.gate_proj.weight', 4, 1))]).toEqual([4, 4, 4, 4, 4, 4]);
    await source.close();
  });

  it('without any, and without a word of them, values are as they are: said', async () => {
    const source = await open({ ...tinyTensors(), [GATE]: ones });
    expect(source.notes).toContainEqual(expect.stringMatching(/^1 tensors in eight bits have no scales/));
    await source.close();
  });
});

describe('refused by name', () => {
  it.each(['gptq', 'awq', 'mxfp4', 'bitsandbytes', 'compressed-tensors'])('%s', async (quant_method) => {
    const quantized = { ...TINY_CONFIG, quantization_config: { quant_method } };
    await expect(open(tinyTensors(), quantized)).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringMatching(
        new RegExp(`already quantized \\(${quant_method}\\).*convert the original in BF16`),
      ),
    });
    // Without weights there is nothing to refuse: the sizes are those of the model.
    const dir = await directory({ 'config.json': quantized });
    expect((await openCheckpoint(dir, { dryRun: true })).hasWeights).toBe(false);
  });

  it.each([
    { quantization: { group_size: 64, bits: 4 } },
    // As newer versions of mlx-lm write it.
    { quantization: { group_size: 64, bits: 4 }, quantization_config: { group_size: 64, bits: 4 } },
  ])('MLX: %j', async (stated) => {
    await expect(open(tinyTensors(), { ...TINY_CONFIG, ...stated })).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringMatching(
        /: quantization: the checkpoint is already quantized \(MLX, 4 bits\) \(convert the original in BF16/,
      ),
    });
  });

  it.each([
    ['model.layers.0.mlp.up_proj.biases', 'MLX'],
    ['model.layers.0.mlp.up_proj.qweight', 'gptq or awq'],
    ['model.layers.0.mlp.experts.down_proj_blocks', 'mxfp4'],
    ['model.layers.0.mlp.up_proj.weight_packed', 'compressed-tensors'],
  ])('by the tensor %s', async (name, method) => {
    await expect(open({ ...tinyTensors(), [name]: { dtype: 'I32', shape: [2] } })).rejects.toThrow(
      `${name}: the checkpoint is already quantized (${method})`,
    );
  });

  it('counts unsupported dtypes before any work', async () => {
    const tensors = tinyTensors();
    for (const layer of [0, 1]) {
      tensors[`model.layers.${layer}.mlp.up_proj.weight`] = { dtype: 'I8', size: 1, shape: [5, 6] };
    }
    tensors[GATE] = { dtype: 'U8', size: 1, shape: [5, 6] };
    await expect(open(tensors)).rejects.toThrow('3 tensors do not match the configuration (1 × U8, 2 × I8)');
  });
});

describe('experts in one tensor', () => {
  /** Three experts of width 2 over hidden 4. */
  const config = {
    model_type: 'qwen3_moe',
    hidden_size: 4,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    head_dim: 2,
    vocab_size: 7,
    num_experts: 3,
    num_experts_per_tok: 2,
    moe_intermediate_size: 2,
    tie_word_embeddings: true,
  };
  const at = 'model.layers.0';
  function tensors(prefix: string, gateUp: number[], down: number[]) {
    const count = (shape: number[]) => shape.reduce((a, b) => a * b, 1);
    const shapes: Record<string, number[]> = {
      'embed_tokens.weight': [7, 4],
      'norm.weight': [4],
      'layers.0.input_layernorm.weight': [4],
      'layers.0.post_attention_layernorm.weight': [4],
      'layers.0.self_attn.q_proj.weight': [4, 4],
      'layers.0.self_attn.k_proj.weight': [2, 4],
      'layers.0.self_attn.v_proj.weight': [2, 4],
      'layers.0.self_attn.o_proj.weight': [4, 4],
      'layers.0.self_attn.q_norm.weight': [2],
      'layers.0.self_attn.k_norm.weight': [2],
      'layers.0.mlp.gate.weight': [3, 4],
      'layers.0.mlp.experts.gate_up_proj': gateUp,
      'layers.0.mlp.experts.down_proj': down,
    };
    return Object.fromEntries(
      Object.entries(shapes).map(([name, shape]) => [
        prefix + name,
        { shape, values: Array.from({ length: count(shape) }, (_, i) => i) },
      ]),
    );
  }

  it('rows: [experts, out, in]', async () => {
    const source = await open(tensors('model.', [3, 4, 4], [3, 4, 2]), config);
    // Element [e, r, c] is 16 e + 4 r + c.
    expect([...(await source.rowsF32('layers.0.experts.1.up_proj.weight', 1, 1))]).toEqual([28, 29, 30, 31]);
    expect([...(await source.rowsF32('layers.0.experts.2.gate_proj.weight', 0, 1))]).toEqual([
      32, 33, 34, 35,
    ]);
    expect([...(await source.rowsF32('layers.0.experts.1.down_proj.weight', 3, 1))]).toEqual([14, 15]);
    expect(source.rowsInFile('layers.0.experts.1.up_proj.weight', 0, 2)?.bytes).toBe(32);
    expect(source.tensor('layers.0.experts.1.up_proj.weight').shape).toEqual([2, 4]);
    await source.close();
  });

  it('columns: [experts, in, out], of the model type that has them', async () => {
    const wrapper = {
      model_type: 'qwen3_vl_moe',
      text_config: { ...config, model_type: 'qwen3_vl_moe_text' },
    };
    const stored = {
      ...tensors('model.language_model.', [3, 4, 4], [3, 2, 4]),
      'model.visual.patch_embed.weight': { shape: [2] },
    };
    const source = await open(stored, wrapper);
    // Element [e, c, r] is 16 e + 4 c + r; up has the columns 2 and 3.
    expect([...(await source.rowsF32('layers.0.experts.1.up_proj.weight', 1, 1))]).toEqual([19, 23, 27, 31]);
    expect([...(await source.rowsF32('layers.0.experts.1.gate_proj.weight', 0, 2))]).toEqual([
      ...[16, 20, 24, 28],
      ...[17, 21, 25, 29],
    ]);
    expect([...(await source.rowsF32('layers.0.experts.2.down_proj.weight', 3, 1))]).toEqual([19, 23]);
    expect(source.rowsInFile('layers.0.experts.1.up_proj.weight', 0, 2)).toBeUndefined();
    await source.close();
  });

  it('columns in eight bits: scales lie as the experts do', async () => {
    const quantization_config = { quant_method: 'fp8', weight_block_size: [2, 2] };
    const wrapper = {
      model_type: 'qwen3_vl_moe',
      quantization_config,
      text_config: { ...config, model_type: 'qwen3_vl_moe_text' },
    };
    const base = tensors('model.language_model.', [3, 4, 4], [3, 2, 4]);
    const name = 'model.language_model.layers.0.mlp.experts.gate_up_proj';
    const stored = {
      ...base,
      // Ones, [expert, in, out]; the scale of block [e, i, o] is 4 e + 2 i + o.
      [name]: { dtype: 'F8_E4M3', shape: [3, 4, 4], raw: new Uint8Array(48).fill(0x38) },
      [`${name}_scale_inv`]: { shape: [3, 2, 2], values: Array.from({ length: 12 }, (_, i) => i) },
    };
    const source = await open(stored, wrapper);
    // up has the columns 2 and 3, so o = 1; inputs 0 and 1 have i = 0.
    expect([...(await source.rowsF32('layers.0.experts.1.up_proj.weight', 1, 1))]).toEqual([5, 5, 7, 7]);
    expect([...(await source.rowsF32('layers.0.experts.2.gate_proj.weight', 0, 1))]).toEqual([8, 8, 10, 10]);
    await source.close();
  });

  it('rows, where that model type was saved anew: shapes tell them apart', async () => {
    const wrapper = {
      model_type: 'qwen3_vl_moe',
      text_config: { ...config, model_type: 'qwen3_vl_moe_text' },
    };
    const source = await open(tensors('model.language_model.', [3, 4, 4], [3, 4, 2]), wrapper);
    expect([...(await source.rowsF32('layers.0.experts.1.up_proj.weight', 1, 1))]).toEqual([28, 29, 30, 31]);
    expect(source.rowsInFile('layers.0.experts.1.down_proj.weight', 0, 4)).toBeDefined();
    await source.close();
    await expect(open(tensors('model.language_model.', [3, 4, 4], [3, 3, 3]), wrapper)).rejects.toThrow(
      'experts.down_proj is [3,3,3], not [3,2,4]',
    );
  });

  it('the other orientation is a mismatch, not a guess', async () => {
    await expect(open(tensors('model.', [3, 4, 4], [3, 2, 4]), config)).rejects.toThrow(
      `${at}.mlp.experts.down_proj is [3,2,4], not [3,4,2]`,
    );
  });
});
