/** Checkpoints as users have them: what is read, what is ignored with a note, what is refused. */

const CHECKPOINT = 'packages/convert/test/sources-checkpoint.test.ts';

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
];
