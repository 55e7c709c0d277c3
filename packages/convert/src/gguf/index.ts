/** GGUF, the file of llama.cpp: written of a .cflow or .vflow, and read. */
export * from './architectures.js';
export * from './blocks.js';
export * from './convert-gguf.js';
export * from './export.js';
export * from './import.js';
export * from './keys.js';
export * from './plan.js';
export * from './read.js';
export * from './rope.js';
export * from './schema.js';
export * from './source.js';
export * from './tokenizer-common.js';
export * from './tokenizer-export.js';
export * from './tokenizer-import.js';
export * from './tokenizer-placeholder.js';
export * from './write.js';
