export { LIMITS } from './limits.js';
export type { ModelSpec } from './pool.js';
export { type CflowServer, createServer, type ServerOptions } from './server.js';
