/** From a configuration to the steps that an engine executes: the one place where architectures are told apart. */
import type { ModelConfig } from '../model/config.js';
import { PlanBuilder } from './builder.js';
import { emitHead } from './layers.js';
import { PHASE_PARTS, schedule } from './schedule.js';
import { type StepBody, stepAccess, stepRun } from './steps.js';
import { emitLayers } from './styles.js';
import { type PlacedTransfer, transferSteps } from './transfers.js';
import type { ExecutionPlan, PlanOptions, PlanStep } from './types.js';

/**
 * The plan of one token. Pure: the same config and options give the same plan, and the transfer mode changes no result:
 * only the `call` and `sync` steps, and how late experts run that are fetched meanwhile (report §4.2 to §4.4).
 */
export function buildPlan(config: ModelConfig, options: PlanOptions): ExecutionPlan {
  const b = new PlanBuilder(config, options.transfers === 'predict');
  const logits = emitHead(b, emitLayers(b));
  const late = options.transfers === 'overlap' || options.transfers === 'predict';
  const phases = schedule(
    b.steps.map(({ body, notBefore }) => ({
      ...stepAccess(body),
      runs: stepRun(body),
      late: late && isExpertStep(body),
      notBefore,
    })),
    { delayAware: true, headFrom: b.head },
  );
  const phaseOf: number[] = [];
  for (const [phase, parts] of phases.entries()) {
    for (const part of PHASE_PARTS) for (const step of parts[part]) phaseOf[step] = phase;
  }
  const transfers = transferSteps(b, phaseOf, options.transfers);
  const steps: PlanStep[] = [];
  /** Where each step of the builder stands in the plan. */
  const placed: number[] = [];
  for (const [phase, { parallel, serial }] of phases.entries()) {
    steps.push(...transfersOf(transfers, phase));
    for (const step of [...parallel, ...serial])
      placed[step] = steps.push({ phase, ...b.steps[step]!.body }) - 1;
  }
  return {
    config,
    options,
    buffers: [...b.buffers.values()],
    caches: b.caches,
    steps,
    phaseCount: phases.length,
    residuals: b.residuals.map(({ layer, buffer, step }) => ({
      layer,
      buffer,
      phase: phaseOf[step]!,
      step: placed[step]!,
    })),
    logits,
  };
}

const isExpertStep = ({ op }: StepBody) => op === 'expertsUp' || op === 'expertsDown';

/** The transfers of a phase: calls, then syncs. */
function transfersOf(transfers: readonly PlacedTransfer[], phase: number): PlanStep[] {
  const own = transfers
    .filter((transfer) => transfer.phase === phase)
    .map(({ body }) => ({ phase, ...body }));
  return [...own.filter(({ op }) => op === 'call'), ...own.filter(({ op }) => op === 'sync')];
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
