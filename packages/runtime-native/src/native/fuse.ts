/** Finds gate, up and GLU that can run as one step. */
import { type PlanStep, type StepOp, stepAccess } from '@cflow/format';

type StepOf<Op extends StepOp> = Extract<PlanStep, { op: Op }>;

export interface GatedFusion {
  readonly matvec: StepOf<'matvec'>;
  readonly glu: StepOf<'glu'>;
}

export interface GatedFusions {
  /** By the index of the step in whose place the fused one runs. */
  readonly gated: ReadonlyMap<number, GatedFusion>;
  /** Indices of the steps that the fused ones replace besides. */
  readonly absorbed: ReadonlySet<number>;
}

/**
 * A matvec with two outputs and the GLU of exactly these become one step when nothing else reads the outputs before
 * they are written again, and when moving one of the two to the place of the other passes no hazard.
 */
export function gatedFusions(steps: readonly PlanStep[]): GatedFusions {
  const gated = new Map<number, GatedFusion>();
  const absorbed = new Set<number>();
  for (const [i, matvec] of steps.entries()) {
    if (matvec.op !== 'matvec' || matvec.outs.length !== 2) continue;
    const outs = matvec.outs.map(({ out }) => out);
    const j = onlyReader(steps, i, outs);
    const glu = j === undefined ? undefined : steps[j]!;
    if (j === undefined || glu?.op !== 'glu' || !isGluOf(glu, outs)) continue;
    const between = steps.slice(i + 1, j).map(stepAccess);
    const place = between.every(({ reads, writes }) => ![...reads, ...writes].includes(glu.out))
      ? i
      : between.every(({ writes }) => !writes.includes(matvec.input))
        ? j
        : undefined;
    if (place === undefined) continue;
    gated.set(place, { matvec, glu });
    absorbed.add(place === i ? j : i);
  }
  return { gated, absorbed };
}

function isGluOf({ gate, up }: StepOf<'glu'>, outs: readonly string[]): boolean {
  return gate !== up && outs.includes(gate) && outs.includes(up);
}

/** The one step that reads any of `names` before all of them are written again; undefined if there are more or none. */
function onlyReader(steps: readonly PlanStep[], from: number, names: readonly string[]): number | undefined {
  const live = new Set(names);
  let reader: number | undefined;
  for (let j = from + 1; j < steps.length && live.size; j++) {
    const { reads, writes } = stepAccess(steps[j]!);
    if (reads.some((name) => live.has(name))) {
      if (reader !== undefined) return undefined;
      reader = j;
    }
    for (const name of writes) live.delete(name);
  }
  return reader;
}
