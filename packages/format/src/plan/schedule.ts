/** From steps in program order to phases: what may run between two barriers. One function for plans and programs. */
import type { Access, StepRun } from './steps.js';

/** A step as the schedule sees it. */
export interface SchedulableStep extends Access {
  readonly runs: StepRun;
  /** Run as late as what uses its results allows, instead of as early as it can: its weights are still on their way. */
  readonly late?: boolean | undefined;
  /** Index of an earlier step whose phase this one does not precede. */
  readonly notBefore?: number | undefined;
}

/** How a schedule is made. */
export interface ScheduleOptions {
  /** false: every parallel step gets a phase of its own, in program order, and none is late; for comparison. */
  readonly delayAware: boolean;
  /** First step that waits for all steps before it, whatever it reads: the LM head, which may be left out. */
  readonly headFrom?: number | undefined;
}

/** Steps between two barriers, as indices: first the transfers, then the parallel steps, then the serial ones. */
export interface Phase {
  /** Calls and waits, in program order. */
  readonly transfer: readonly number[];
  /** Independent of one another, shared by all threads. */
  readonly parallel: readonly number[];
  /** In program order, when the parallel ones are done. */
  readonly serial: readonly number[];
}

/** The parts of a phase, in the order in which they run. */
export const PHASE_PARTS = ['transfer', 'parallel', 'serial'] as const satisfies readonly StepRun[];
const PARTS = PHASE_PARTS.length;

/** A part of a phase, as a number that grows with time. */
type Point = number;
const BEFORE: Point = -1;
const partOf = (runs: StepRun) => PHASE_PARTS.indexOf(runs);
const pointOf = (phase: number, runs: StepRun): Point => PARTS * phase + partOf(runs);

/**
 * Gives each step the earliest phase that the hazards of program order allow (read after write, write after read, write
 * after write), and those that are `late` the latest. Serial steps and transfers keep program order within their part,
 * so a serial step may share the phase of what it depends on, and never opens one.
 */
export function schedule(steps: readonly SchedulableStep[], options: ScheduleOptions): Phase[] {
  const at = earliest(steps, options);
  if (options.delayAware) postpone(steps, at);
  const phases = Array.from({ length: Math.max(-1, ...at) + 1 }, () => ({
    transfer: [] as number[],
    parallel: [] as number[],
    serial: [] as number[],
  }));
  for (const [index, { runs }] of steps.entries()) phases[at[index]!]![runs].push(index);
  return phases;
}

/** Barriers of one token: phases in which threads meet; an opening phase without parallel steps has none. */
export function barrierCount(phases: readonly { readonly parallel: readonly number[] }[]): number {
  return phases.filter(({ parallel }) => parallel.length > 0).length;
}

function earliest(steps: readonly SchedulableStep[], options: ScheduleOptions): number[] {
  const { delayAware, headFrom = steps.length } = options;
  const at: number[] = [];
  const hazards = new Hazards();
  let last: Point = BEFORE;
  for (const [index, step] of steps.entries()) {
    const dependsOn = delayAware && index < headFrom ? hazards.latest(step) : last;
    const notBefore = step.notBefore === undefined ? 0 : at[step.notBefore]!;
    const phase = Math.max(notBefore, phaseAfter(dependsOn, step.runs));
    at.push(phase);
    const point = pointOf(phase, step.runs);
    hazards.record(step, point);
    last = Math.max(last, point);
  }
  return at;
}

/** The first phase in which a step runs behind `point`; serial steps and transfers may share the part of `point`. */
function phaseAfter(point: Point, runs: StepRun): number {
  const from = runs === 'parallel' ? point + 1 : point;
  return Math.max(0, Math.ceil((from - partOf(runs)) / PARTS));
}

/** Moves late steps, from the last to the first, to just before what depends on them. */
function postpone(steps: readonly SchedulableStep[], at: number[]): void {
  for (let i = steps.length - 1; i >= 0; i--) {
    if (!steps[i]!.late) continue;
    let latest = Number.POSITIVE_INFINITY;
    for (let j = i + 1; j < steps.length; j++) {
      if (!conflict(steps[i]!, steps[j]!)) continue;
      latest = Math.min(latest, phaseBefore(at[j]!, steps[j]!.runs, steps[i]!.runs));
    }
    if (Number.isFinite(latest)) at[i] = Math.max(at[i]!, latest);
  }
}

/** The last phase in which a step that runs like `runs` comes before one like `next` in `phase`. */
function phaseBefore(phase: number, next: StepRun, runs: StepRun): number {
  const inOrder = runs !== 'parallel' && runs === next;
  return inOrder || partOf(runs) < partOf(next) ? phase : phase - 1;
}

function conflict(a: Access, b: Access): boolean {
  const meets = (these: readonly string[], those: readonly string[]) =>
    these.some((name) => those.includes(name));
  return meets(a.writes, b.reads) || meets(a.writes, b.writes) || meets(a.reads, b.writes);
}

/** When each resource was last read and last written. */
class Hazards {
  readonly #reads = new Map<string, Point>();
  readonly #writes = new Map<string, Point>();

  /** The latest point at which something runs that `step` depends on. */
  latest({ reads, writes }: Access): Point {
    const last = (by: ReadonlyMap<string, Point>, names: readonly string[]) =>
      names.map((name) => by.get(name) ?? BEFORE);
    return Math.max(
      BEFORE,
      ...last(this.#writes, reads),
      ...last(this.#writes, writes),
      ...last(this.#reads, writes),
    );
  }

  record({ reads, writes }: Access, point: Point): void {
    for (const name of reads) this.#reads.set(name, Math.max(point, this.#reads.get(name) ?? BEFORE));
    for (const name of writes) this.#writes.set(name, Math.max(point, this.#writes.get(name) ?? BEFORE));
  }
}
