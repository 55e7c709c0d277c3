import type { ExecutionPlan } from './plan-types.js';

export function formatPlan(plan: ExecutionPlan): string {
  return `${plan.phaseCount} phases\n`;
}
