/** From steps in program order to stages: what may run between two barriers. */
import type { StepAccess, StepKind } from './access.js';
import type { Stage } from './program.js';

/** A step as the schedule sees it. */
export interface SchedulableStep extends StepAccess {
  readonly kind: StepKind;
  /** Run as late as what uses its results allows, instead of as early as it can: its weights are still on their way. */
  readonly late?: boolean;
}

export interface ScheduleOptions {
  /** false: every parallel step gets a stage of its own, in program order; for comparison. */
  readonly delayAware: boolean;
  /** First step that waits for all steps before it, whatever it reads: the LM head, which may be left out. */
  readonly headFrom?: number;
}

/** Order of the parts of a stage. */
const ORDER: Record<StepKind, number> = { parallel: 0, serial: 1, transfers: 2 };

/**
 * Gives each step the earliest stage that the hazards of program order allow (read after write, write after read,
 * write after write), and those that are `late` the latest. Steps that share a stage's parallel part are independent.
 * Its serial part runs after them, in program order, and its transfers after that, so such a step may share the stage
 * of what it depends on, and never opens one.
 */
export function schedule(steps: readonly SchedulableStep[], options: ScheduleOptions): Stage[] {
  const at = earliest(steps, options);
  postpone(steps, at);
  const stages: Stage[] = Array.from({ length: Math.max(-1, ...at) + 1 }, () => ({
    parallel: [],
    serial: [],
    transfers: [],
  }));
  for (const [index, step] of steps.entries()) (stages[at[index]!]![step.kind] as number[]).push(index);
  return stages;
}

function earliest(steps: readonly SchedulableStep[], options: ScheduleOptions): number[] {
  const { delayAware, headFrom = steps.length } = options;
  const at: number[] = [];
  const hazards = new Hazards();
  let last: Point = BEFORE;
  for (const [index, step] of steps.entries()) {
    const dependsOn = delayAware && index < headFrom ? hazards.latest(step) : last;
    const stage = stageAfter(dependsOn, step.kind);
    at.push(stage);
    const point = pointOf(stage, step.kind);
    hazards.record(step, point);
    last = Math.max(last, point);
  }
  return at;
}

/** A part of a stage, as a number that grows with time. */
type Point = number;
const PARTS = 3;
const BEFORE: Point = -1;
const pointOf = (stage: number, kind: StepKind): Point => PARTS * stage + ORDER[kind];

/** The first stage in which a step of this kind runs behind `point`; serial steps and transfers keep program order. */
function stageAfter(point: Point, kind: StepKind): number {
  if (kind === 'parallel') return Math.floor(point / PARTS) + 1;
  return Math.max(0, Math.ceil((point - ORDER[kind]) / PARTS));
}

/** Moves late steps, from the last to the first, to just before what depends on them. */
function postpone(steps: readonly SchedulableStep[], at: number[]): void {
  for (let i = steps.length - 1; i >= 0; i--) {
    if (!steps[i]!.late) continue;
    let latest = Number.POSITIVE_INFINITY;
    for (let j = i + 1; j < steps.length; j++) {
      if (!conflict(steps[i]!, steps[j]!)) continue;
      latest = Math.min(latest, stageBefore(at[j]!, steps[j]!.kind, steps[i]!.kind));
    }
    if (Number.isFinite(latest)) at[i] = Math.max(at[i]!, latest);
  }
}

/** The last stage in which a step of `kind` runs before one of kind `next` in `stage`. */
function stageBefore(stage: number, next: StepKind, kind: StepKind): number {
  const inOrder = kind !== 'parallel' && kind === next;
  return inOrder || ORDER[kind] < ORDER[next] ? stage : stage - 1;
}

function conflict(a: StepAccess, b: StepAccess): boolean {
  const meets = (these: readonly string[], those: readonly string[]) =>
    these.some((name) => those.includes(name));
  return meets(a.writes, b.reads) || meets(a.writes, b.writes) || meets(a.reads, b.writes);
}

/** When each resource was last read and last written. */
class Hazards {
  readonly #reads = new Map<string, Point>();
  readonly #writes = new Map<string, Point>();

  /** The latest point at which something runs that `step` depends on. */
  latest({ reads, writes }: StepAccess): Point {
    const last = (by: ReadonlyMap<string, Point>, names: readonly string[]) =>
      names.map((name) => by.get(name) ?? BEFORE);
    return Math.max(
      BEFORE,
      ...last(this.#writes, reads),
      ...last(this.#writes, writes),
      ...last(this.#reads, writes),
    );
  }

  record({ reads, writes }: StepAccess, point: Point): void {
    for (const name of reads) this.#reads.set(name, Math.max(point, this.#reads.get(name) ?? BEFORE));
    for (const name of writes) this.#writes.set(name, Math.max(point, this.#writes.get(name) ?? BEFORE));
  }
}

/** Barriers of one token: stages in which threads meet; an opening stage without parallel steps has none. */
export function barrierCount(stages: readonly Stage[]): number {
  return stages.filter(({ parallel }) => parallel.length > 0).length;
}
