/** A model that takes its time: something can happen while it runs. */
import { parseModelConfig } from '@cflow/format';
import { modelBytes, randomTensors } from './model-file.js';

/** With the scalar kernels, a long prompt takes seconds. */
const SLOW = parseModelConfig({
  name: 'slow',
  family: 'cflow',
  hiddenDim: 256,
  vocabSize: 300,
  contextLength: 4096,
  normEps: 1e-6,
  combineStyle: 'sequential',
  layers: Array.from({ length: 4 }, () => ({
    attention: { heads: 8, kvHeads: 8, headDim: 32, scale: 0.2 },
    ffn: { dim: 512, activation: 'gelu' },
  })),
});
export const SLOWLY = { isa: 'scalar', maxBatch: 8 } as const;
export const LONG = Array.from({ length: 3000 }, (_, i) => i % 300);

/** Its file. */
export const slowModel = () =>
  modelBytes(
    SLOW,
    randomTensors(SLOW, (x) => x / 16),
  );
