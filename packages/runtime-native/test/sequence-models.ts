/** Small models of every kind whose sequences are cut, forked and batched: what must not change is their bits. */
import type { ModelConfig } from '@cflow/format';
import { makeConfig } from '@cflow/test-kit/models';
import type { OpenModelOptions } from '../src/model.js';
import { canonicalNames, GOLDEN_LLAMA, goldenPath, loadSafetensors } from './helpers.js';
import { type FileOptions, goldenFile, modelBytes, quarter, randomTensors } from './model-file.js';

const GOLDEN = ['arch1', 'arch2_4', 'arch2_4_sync', 'arch3', 'arch4', 'arch5', 'parallel_sqrt2'];

const llama = (options: FileOptions) =>
  modelBytes(
    GOLDEN_LLAMA,
    canonicalNames(loadSafetensors(goldenPath('llama', 'model.safetensors'))),
    options,
  );

const made = (config: ModelConfig) => (options: FileOptions) =>
  modelBytes(config, randomTensors(config, quarter), options);

/** Makes the file of a model, by what it is. */
export const MODELS: Readonly<Record<string, (options: FileOptions) => Promise<Uint8Array>>> = {
  ...Object.fromEntries(
    GOLDEN.map((arch) => [arch, async (options: FileOptions) => (await goldenFile(arch, options)).bytes]),
  ),
  llama,
  windows: made(makeConfig({ layers: 4, slidingEvery: 2, denseDelay: 1, expertDelay: 2 })),
};

/** How they are run: both engines, both arithmetics, both caches. */
export const WAYS: Readonly<Record<string, OpenModelOptions & FileOptions>> = {
  reference: { engine: 'reference' },
  'native f32': { engine: 'native', cache: 'f32', maxBatch: 8, threads: 2 },
  'native f16': { engine: 'native', cache: 'f16', maxBatch: 8, threads: 2 },
  'native q4_0': { engine: 'native', dtype: 'q4_0', maxBatch: 8, threads: 2 },
};
