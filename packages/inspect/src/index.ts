export * from './inspect.js';
export * from './render.js';
export * from './report.js';
export * from './schema.js';
export * from './stats.js';
export * from './tiles.js';
export * from './verify.js';
