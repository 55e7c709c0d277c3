/** Converts checkpoints to .cflow and .vflow files, and these to GGUF and safetensors. */

export { CONVERTER_VERSION, convert } from './convert.js';
export { CONVERT_DEFAULTS, MOST_THREADS } from './defaults.js';
export { type DryRunReport, dryRun } from './dry-run.js';
export { readModelConfig } from './families/index.js';
export type { Retry } from './hub/client.js';
export type { ConvertOptions, ConvertRequest, ConvertResult } from './options.js';
export { setInFile } from './set.js';
