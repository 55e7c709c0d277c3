/** From a configuration to the steps that an engine executes: the one place where architectures are told apart. */
import type { ModelConfig } from '../model/config.js';
import { emitHead } from './layers.js';
import { PlanBuilder, type Scheduled } from './phases.js';
import { emitLayers } from './styles.js';
import { transferSteps } from './transfers.js';
import type { ExecutionPlan, PlanOptions, StepOp } from './types.js';

export { stepAccess } from './phases.js';

/**
 * The plan of one token. Pure: the same config and options give the same plan, and the transfer mode changes nothing
 * but the `call` and `sync` steps (report §4.2 to §4.4).
 */
export function buildPlan(config: ModelConfig, options: PlanOptions): ExecutionPlan {
  const b = new PlanBuilder(config, options.transfers === 'predict');
  const logits = emitHead(b, emitLayers(b));
  b.placeDeferrable();
  const steps = inOrder([...transferSteps(b, options.transfers), ...b.steps]);
  return {
    config,
    options,
    buffers: [...b.buffers.values()],
    caches: b.caches,
    steps: steps.map(({ phase, body }) => ({ phase, ...body })),
    phaseCount: steps.at(-1)!.phase + 1,
    residuals: b.residuals,
    logits,
  };
}

const RANK: Partial<Record<StepOp, number>> = { call: 0, sync: 1 };

/** By phase; within one, calls, then syncs, then the rest, each in the order of emission. */
function inOrder(steps: Scheduled[]): Scheduled[] {
  const rank = ({ body }: Scheduled) => RANK[body.op] ?? 2;
  return steps.sort((x, y) => x.phase - y.phase || rank(x) - rank(y));
}

/**
 * Stream names in the order in which the overlapped plan first asks for them, whatever the mode of `plan`: the order
 * of the .cflow file with experts left out, and the embedding's gather. In file slot ℓ stand attention ℓ, dense ℓ + δd
 * (slot 0: dense 0 to δd) and router ℓ; final norm and LM head (or the tied embedding) come last. Below δd a dense
 * stream is asked for only where experts need the norm in it.
 */
export function firstAsked(plan: ExecutionPlan): string[] {
  const overlapped =
    plan.options.transfers === 'overlap' ? plan : buildPlan(plan.config, { transfers: 'overlap' });
  return overlapped.steps.flatMap((step) =>
    step.op === 'call' && step.target.kind === 'stream' ? [step.target.stream] : [],
  );
}
