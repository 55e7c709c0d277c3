import type { ModelConfig } from './config.js';
import type { ExecutionPlan, PlanOptions } from './plan-types.js';

export function buildPlan(config: ModelConfig, options: PlanOptions): ExecutionPlan {
  return { config, options, buffers: [], caches: [], steps: [], phaseCount: 0, residuals: [], logits: '' };
}
export function firstAsked(_plan: ExecutionPlan): string[] {
  return [];
}
