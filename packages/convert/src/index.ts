export { parseQuota, type ThreadBudget, threadBudget } from '@cflow/runtime-native';
export {
  CONVERTER_VERSION,
  convert,
  draftMetadata,
  plannedLayout,
} from './convert.js';
export { CONVERT_DEFAULTS, MOST_THREADS } from './defaults.js';
export { type DryRunReport, dryRun } from './dry-run.js';
export { FAMILIES, readModelConfig } from './families/index.js';
export * from './gguf/index.js';
export type { Retry } from './hub/client.js';
export * from './options.js';
export * from './pipeline/delayed-moe.js';
export { setInFile } from './set.js';
export * from './sources/checkpoint.js';
export { tensorNameMap } from './sources/ledger.js';
export * from './sources/safetensors.js';
export { AtomicFile } from './targets/atomic-file.js';
