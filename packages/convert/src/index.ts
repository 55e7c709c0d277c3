export { AtomicFile, checkTarget } from './atomic-file.js';
export * from './convert.js';
export { FAMILIES, readModelConfig } from './families/index.js';
export * from './options.js';
export * from './sources/checkpoint.js';
export * from './sources/delayed-moe.js';
export { tensorNameMap } from './sources/mismatch.js';
export * from './sources/safetensors.js';
export * from './threads.js';
