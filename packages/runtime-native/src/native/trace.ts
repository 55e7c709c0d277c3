/** Programs that give, of each token, what buffers held on the way: to compare engines layer by layer. */
import { CflowError, type ExecutionPlan, stepAccess } from '@cflow/format';

/** A buffer of the plan, as all steps up to the end of a phase leave it; `plan.residuals` are such points. */
export interface TracePoint {
  readonly buffer: string;
  readonly phase: number;
}

/**
 * The points that each step of the plan completes, by its index.
 * @throws CflowError INTERNAL if no step up to the point writes its buffer
 */
export function completedBy(
  { steps }: ExecutionPlan,
  points: readonly TracePoint[],
): ReadonlyMap<number, readonly TracePoint[]> {
  const completed = new Map<number, TracePoint[]>();
  for (const point of points) {
    const { buffer, phase } = point;
    const writers = steps.flatMap((step, i) =>
      step.phase <= phase && stepAccess(step).writes.includes(buffer) ? [i] : [],
    );
    const last = writers.at(-1);
    if (last === undefined)
      throw new CflowError('INTERNAL', `no step up to phase ${phase} writes buffer ${buffer}`);
    completed.set(last, [...(completed.get(last) ?? []), point]);
  }
  return completed;
}
