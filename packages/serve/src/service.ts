/** What the routes share. */
import type { Admission } from './admission.js';
import type { Metrics } from './metrics.js';
import type { ModelPool } from './pool.js';

/** Limits of requests; milliseconds. */
export interface ServiceLimits {
  /** Most tokens of an answer; absent = as many as the context has room for. */
  readonly maxTokens: number | undefined;
  readonly headMs: number;
  readonly aliveMs: number;
  readonly stallMs: number;
}

/** One server's parts. */
export interface Service {
  readonly pool: ModelPool;
  readonly admission: Admission;
  readonly metrics: Metrics;
  readonly limits: ServiceLimits;
  /** Bytes per second that memory can be read with; 0 = not measured. */
  readonly memoryBandwidth: number;
}
