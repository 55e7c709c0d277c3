/** Checkpoints as users have them: what is read, what is ignored with a note, what is refused. */

import { readFileSync } from 'node:fs';

const CHECKPOINT = 'packages/convert/test/sources-checkpoint.test.ts';
const QUANTIZED = 'packages/convert/test/sources-quantized.test.ts';
const FAMILIES = 'packages/convert/test/families.test.ts';
const SAFETENSORS = 'packages/convert/test/safetensors.test.ts';
const GOLDEN = 'packages/runtime-native/test/golden-hf.test.ts';
const GATE = 'model.layers.0.mlp.gate_proj.weight';
const FP8 = { quantization_config: { quant_method: 'fp8', weight_block_size: [2, 4] } };
const EIGHT_BITS = { dtype: 'F8_E4M3', shape: [5, 6] };

/** The notes of a dry run, of which one holds the words. */
async function noted(t, source, words) {
  const { notes } = await t.dryRun(source);
  const note = notes.find((line) => line.includes(words));
  t.assert.ok(note, `"${words}" is in none of: ${notes.join(' | ')}`);
  return note;
}

/** Refused by the conversion and by its dry run. */
async function refusedTwice(t, source, code, ...words) {
  await t.refused(t.dryRun(source), code, ...words);
  return t.refused(t.convert(source), code, ...words);
}

export default [
  {
    id: 'h2',
    kind: 'a tensor that is not in the shard that the index names',
    test: CHECKPOINT,
    run: (t) => {
      const weight_map = { 'model.norm.weight': 'a.safetensors', 'lm_head.weight': 'a.safetensors' };
      const source = t.checkpoint('model', {
        more: {
          'model.safetensors': undefined,
          'a.safetensors': t.safetensors({ 'model.norm.weight': [6] }),
          'model.safetensors.index.json': { weight_map },
        },
      });
      return t.refused(t.convert(source), 'TENSOR_MISMATCH', 'lm_head.weight', 'a.safetensors');
    },
  },
  {
    id: 1,
    kind: 'FP8 without its scales',
    test: QUANTIZED,
    run: (t) => {
      const source = t.checkpoint('model', { config: FP8, tensors: { [GATE]: EIGHT_BITS } });
      return refusedTwice(t, source, 'TENSOR_MISMATCH', `missing ${GATE}_scale_inv`);
    },
  },
  {
    id: 2,
    kind: 'fused experts [E, in, out] in FP8, scales of the other orientation',
    test: QUANTIZED,
    run: (t) => {
      const experts = 'model.layers.0.mlp.experts.gate_up_proj';
      const scaled = (shape) => ({
        [experts]: { dtype: 'F8_E4M3', shape: [3, 6, 10] },
        [`${experts}_scale_inv`]: shape,
      });
      const words = [`${experts}_scale_inv`, 'are [3,5,3], not [3,3,5] for blocks of 2 × 2'];
      return refusedTwice(t, t.experts('model', scaled([3, 5, 3])), 'TENSOR_MISMATCH', ...words);
    },
  },
  {
    id: 3,
    kind: 'scales of an F32 weight',
    test: QUANTIZED,
    run: (t) => {
      const source = t.checkpoint('model', { tensors: { [`${GATE}_scale_inv`]: [3, 2] } });
      return refusedTwice(t, source, 'TENSOR_MISMATCH', `${GATE}_scale_inv`, 'is F32 and has no scales');
    },
  },
  {
    id: 4,
    kind: 'a stray model.safetensors beside an index',
    test: CHECKPOINT,
    run: (t) => {
      const shard = t.safetensors(t.shapes);
      const weight_map = Object.fromEntries(Object.keys(t.shapes).map((name) => [name, 'a.safetensors']));
      const more = {
        'a.safetensors': shard,
        'model.safetensors': '',
        'model.safetensors.index.json': { weight_map },
      };
      return noted(t, t.checkpoint('model', { more }), 'ignored model.safetensors');
    },
  },
  {
    id: 5,
    kind: 'a tensor in two shards, of which the index names one',
    test: CHECKPOINT,
    run: (t) => {
      const names = Object.keys(t.shapes);
      const more = {
        'model.safetensors': undefined,
        'a.safetensors': t.safetensors(t.shapes),
        'b.safetensors': t.safetensors({ 'model.norm.weight': [6] }),
        'model.safetensors.index.json': {
          weight_map: Object.fromEntries(
            names.map((name) => [name, name === 'model.norm.weight' ? 'b.safetensors' : 'a.safetensors']),
          ),
        },
      };
      return noted(t, t.checkpoint('model', { more }), 'model.norm.weight: in several shards');
    },
  },
  {
    id: 6,
    kind: 'rope_scaling with a factor and no type',
    test: FAMILIES,
    run: (t) => {
      const source = t.checkpoint('model', { config: { rope_scaling: { factor: 4 } } });
      return refusedTwice(t, source, 'CONFIG_INVALID', 'rope_scaling.rope_type', 'factor without a type');
    },
  },
  {
    id: 7,
    kind: 'two values of rope_theta',
    test: FAMILIES,
    run: (t) => {
      const source = t.checkpoint('model', { config: { rope_parameters: { rope_theta: 5e5 } } });
      return refusedTwice(t, source, 'CONFIG_INVALID', 'rope_theta', '500000', '10000');
    },
  },
  {
    id: 8,
    kind: 'layer_types of another length',
    test: FAMILIES,
    run: (t) => {
      const source = t.checkpoint('model', { config: { layer_types: ['full_attention'] } });
      return refusedTwice(t, source, 'CONFIG_INVALID', 'layer_types', '1 entries for 2 layers');
    },
  },
  {
    id: 9,
    kind: 'a tied flag, and another LM head',
    test: CHECKPOINT,
    run: (t) => {
      const head = { dtype: 'F32', shape: [7, 6], bytes: Buffer.alloc(168) };
      return noted(t, t.checkpoint('model', { tensors: { 'lm_head.weight': head } }), 'both are kept');
    },
  },
  {
    id: 10,
    kind: 'Gemma 4 of transformers 5.18: keys "05" and "11" of per_layer_config',
    test: GOLDEN,
    run: async (t) => {
      const { parameters } = await t.convert(`${t.root}packages/runtime-native/test/golden/hf/gemma4_padded`);
      return `${parameters} parameters`;
    },
  },
  {
    id: 11,
    kind: 'one numbered shard, and no index',
    test: CHECKPOINT,
    run: async (t) => {
      const more = {
        'model.safetensors': undefined,
        'model-00001-of-00001.safetensors': t.safetensors(t.shapes),
      };
      const { parameters, weightsPresent } = await t.dryRun(t.checkpoint('model', { more }));
      t.assert.equal(weightsPresent, true);
      return `${parameters} parameters`;
    },
  },
  {
    id: 12,
    kind: 'no tie flag and no LM head',
    test: CHECKPOINT,
    run: (t) => {
      const source = t.checkpoint('model', { config: { tie_word_embeddings: undefined } });
      return refusedTwice(t, source, 'TENSOR_MISMATCH', 'lm_head.weight', '"tie_word_embeddings": true');
    },
  },
  {
    id: 13,
    kind: 'head_dim 0, vocab_size -1, sliding_window 0, num_experts 0',
    test: CHECKPOINT,
    run: async (t) => {
      const config = { head_dim: 0, vocab_size: -1, sliding_window: 0, num_experts: 0 };
      const { parameters } = await t.dryRun(t.checkpoint('zeros', { config }));
      t.assert.equal(parameters, (await t.dryRun(t.checkpoint('stated'))).parameters);
      return `${parameters} parameters, as where they are stated`;
    },
  },
  {
    id: 14,
    kind: 'token ids outside the vocabulary',
    test: CHECKPOINT,
    run: (t) => noted(t, t.checkpoint('model', { config: { eos_token_id: 50_279 } }), 'eos_token_id 50279'),
  },
  {
    id: 15,
    kind: 'clip_qkv of OLMoE',
    test: GOLDEN,
    run: async (t) => {
      await t.convert(`${t.root}packages/runtime-native/test/golden/hf/olmoe_clipped`);
      const { stdout } = await t.run('cflow-inspect', ['out.cflow']);
      return stdout.split('\n').find((line) => line.includes('clipped to ±0.8')) ?? t.assert.fail(stdout);
    },
  },
  {
    id: 18,
    kind: 'a long header of safetensors',
    test: SAFETENSORS,
    run: async (t) => {
      const source = t.checkpoint('model');
      const low = { maxHeaderBytes: 100 };
      const said = await t.refused(t.convert(source, low), 'LIMIT_EXCEEDED', '--max-header');
      await t.convert(source);
      return said;
    },
  },
  {
    id: 36,
    kind: 'a truncated safetensors',
    test: SAFETENSORS,
    run: (t) => {
      const whole = t.safetensors(t.shapes);
      const more = { 'model.safetensors': whole.subarray(0, whole.length - 10) };
      return refusedTwice(
        t,
        t.checkpoint('model', { more }),
        'FORMAT_INVALID',
        '10 of them are missing',
        'download',
      );
    },
  },
  {
    id: 21,
    kind: 'ids that end a text, to GGUF and back',
    test: 'packages/convert/test/gguf-tokenizer.test.ts',
    run: async (t) => {
      await t.convert(t.checkpoint('model', { config: { eos_token_id: [6, 2, 4, 3, 5] } }));
      await t.convertFile(t.at('out.cflow'), t.at('out.gguf'));
      await t.convertFile(t.at('out.gguf'), t.at('back.cflow'));
      const bytes = readFileSync(t.at('back.cflow'), 'latin1');
      t.assert.ok(bytes.includes('"eosTokenIds":[6,2,4,3,5]'));
      return 'five ids, in their order';
    },
  },
  {
    id: 37,
    kind: 'a GGUF with a byte behind its last tensor',
    test: 'packages/convert/test/gguf-notes.test.ts',
    run: async (t) => {
      await t.convert(t.checkpoint('model'));
      await t.convertFile(t.at('out.cflow'), t.at('out.gguf'));
      t.append('out.gguf', Buffer.alloc(1));
      return t.refused(t.dryRun(t.at('out.gguf')), 'FORMAT_INVALID', '1 byte after the last tensor');
    },
  },
  {
    id: 'hostile',
    kind: '65,535 layers of 255 experts',
    test: FAMILIES,
    run: (t) => {
      const huge = {
        num_hidden_layers: 65_535,
        num_experts: 255,
        num_experts_per_tok: 8,
        moe_intermediate_size: 8,
      };
      const source = t.checkpoint('model', { config: { ...huge, model_type: 'qwen3_moe' } });
      return t.refused(t.dryRun(source), 'LIMIT_EXCEEDED', 'streams');
    },
  },
];
