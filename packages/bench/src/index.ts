export * from './convert-bench.js';
export * from './geometry.js';
export * from './synth.js';
export * from './weights.js';
