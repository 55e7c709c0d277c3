/** From steps in program order to stages: what may run between two barriers. */
import type { StepAccess } from './access.js';
import type { Stage } from './program.js';

/** A step as the schedule sees it. */
export interface SchedulableStep extends StepAccess {
  readonly parallel: boolean;
}

export interface ScheduleOptions {
  /** false: every parallel step gets a stage of its own, in program order; for comparison. */
  readonly delayAware: boolean;
  /** First step that waits for all steps before it, whatever it reads: the LM head, which may be left out. */
  readonly headFrom?: number;
}

interface MutableStage {
  readonly parallel: number[];
  readonly serial: number[];
}

/**
 * Gives each step the earliest stage that the hazards of program order allow (read after write, write after read,
 * write after write). Steps that share a stage's parallel part are independent. Its serial part runs after them, in
 * program order, so a serial step may share the stage of what it depends on, and never opens one.
 */
export function schedule(steps: readonly SchedulableStep[], options: ScheduleOptions): Stage[] {
  const { delayAware, headFrom = steps.length } = options;
  const stages: MutableStage[] = [];
  const hazards = new Hazards();
  let last = -1;
  for (const [index, step] of steps.entries()) {
    const dependsOn = delayAware && index < headFrom ? hazards.latest(step) : last;
    const stage = step.parallel ? dependsOn + 1 : Math.max(0, dependsOn);
    // A first stage without parallel steps holds what the others begin with: nobody waits in it.
    while (stages.length <= stage) stages.push({ parallel: [], serial: [] });
    stages[stage]![step.parallel ? 'parallel' : 'serial'].push(index);
    hazards.record(step, stage);
    last = Math.max(last, stage);
  }
  return stages;
}

/** Which stage last read and last wrote each resource. */
class Hazards {
  readonly #reads = new Map<string, number>();
  readonly #writes = new Map<string, number>();

  /** The latest stage that holds a step which `step` depends on; −1 if there is none. */
  latest({ reads, writes }: StepAccess): number {
    const last = (by: ReadonlyMap<string, number>, names: readonly string[]) =>
      names.map((name) => by.get(name) ?? -1);
    return Math.max(
      -1,
      ...last(this.#writes, reads),
      ...last(this.#writes, writes),
      ...last(this.#reads, writes),
    );
  }

  record({ reads, writes }: StepAccess, stage: number): void {
    for (const name of reads) this.#reads.set(name, Math.max(stage, this.#reads.get(name) ?? -1));
    for (const name of writes) this.#writes.set(name, Math.max(stage, this.#writes.get(name) ?? -1));
  }
}

/** Barriers of one token: stages in which threads meet; an opening stage without parallel steps has none. */
export function barrierCount(stages: readonly Stage[]): number {
  return stages.filter(({ parallel }) => parallel.length > 0).length;
}
