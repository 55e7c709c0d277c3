export * from './convert.js';
export * from './options.js';
export * from './sources/checkpoint.js';
export * from './sources/delayed-moe.js';
export * from './sources/safetensors.js';
export * from './threads.js';
