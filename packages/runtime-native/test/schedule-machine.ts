/** What steps read and write, and a machine that runs them in phases, to compare with the order of the program. */

import type { PlanStep, ProgramStep } from '@cflow/format';
import { expect } from 'vitest';
import type { ProgramPhase } from '../src/native/program.js';

/** Written apart from the step table: which buffers an instruction reads and writes, as the program's docs say. */
export function effects(step: ProgramStep, int8: boolean): Effects {
  const tiled = (id: number) => (int8 ? `int8 ${id}` : `${id}`);
  switch (step.op) {
    case 'embed':
      return { reads: ['token'], writes: [`${step.out}`] };
    case 'quantize':
      return { reads: [`${step.input}`], writes: [`int8 ${step.input}`] };
    case 'matvec':
      return { reads: [tiled(step.input)], writes: step.outs.map(({ out }) => `${out}`) };
    case 'gatedMatvec':
      return { reads: [tiled(step.input)], writes: [`${step.out}`] };
    case 'expertsUp':
      return {
        reads: [tiled(step.input), `${step.routing}`, `experts ${step.bank}`],
        writes: [`${step.hidden}`],
      };
    case 'expertsDown':
      return {
        reads: [tiled(step.hidden), `${step.routing}`, `experts ${step.bank}`],
        writes: [`${step.out}`],
      };
    case 'append':
      return { reads: [`${step.k}`, `${step.v}`, `cache ${step.cache}`], writes: [`cache ${step.cache}`] };
    case 'attend':
      return { reads: [`${step.q}`, `cache ${step.cache}`], writes: [`${step.out}`] };
    case 'glu':
      return { reads: [`${step.gate}`, `${step.up}`], writes: [`${step.out}`] };
    case 'route':
      return { reads: [`${step.logits}`], writes: [`${step.out}`] };
    case 'sum':
      return { reads: step.terms.map(String), writes: [`${step.out}`] };
    case 'callExperts':
      return { reads: [`${step.routing}`], writes: [`experts ${step.bank}`] };
    case 'syncExperts':
    case 'releaseExperts':
      return { reads: [], writes: [`experts ${step.bank}`] };
    case 'callStream':
    case 'syncStream':
    case 'releaseStream':
      return { reads: [], writes: [] };
    case 'rope':
    case 'clamp':
    case 'softcap':
      return { reads: [`${step.buffer}`], writes: [`${step.buffer}`] };
    default:
      return { reads: [`${step.input}`], writes: [`${step.out}`] };
  }
}

/** The same of a step of a plan. */
export function planEffects(step: PlanStep): Effects {
  switch (step.op) {
    case 'embed':
      return { reads: ['token'], writes: [step.out] };
    case 'matvec':
      return { reads: [step.input], writes: step.outs.map(({ out }) => out) };
    case 'append':
      return { reads: [step.k, step.v, `cache ${step.cache}`], writes: [`cache ${step.cache}`] };
    case 'attend':
      return { reads: [step.q, `cache ${step.cache}`], writes: [step.out] };
    case 'glu':
      return { reads: [step.gate, step.up], writes: [step.out] };
    case 'route':
      return { reads: [step.logits], writes: [step.out] };
    case 'expertsUp':
      return { reads: [step.input, step.routing], writes: [step.hidden] };
    case 'expertsDown':
      return { reads: [step.hidden, step.routing], writes: [step.out] };
    case 'sum':
      return { reads: step.terms, writes: [step.out] };
    case 'rope':
    case 'clamp':
    case 'softcap':
      return { reads: [step.buffer], writes: [step.buffer] };
    case 'call':
      return { reads: step.target.kind === 'experts' ? [step.target.routing] : [], writes: [] };
    case 'sync':
      return { reads: [], writes: [] };
    default:
      return { reads: [step.input], writes: [step.out] };
  }
}

export interface Effects {
  readonly reads: readonly string[];
  readonly writes: readonly string[];
}

/** Runs steps symbolically: a resource holds the number of the step that wrote it. Returns what each step saw. */
class Machine {
  readonly #held = new Map<string, number>();
  readonly saw: string[] = [];

  constructor(readonly steps: readonly Effects[]) {}

  look(index: number): void {
    const seen = this.steps[index]!.reads.map((name) => `${name}=${this.#held.get(name)}`);
    this.saw[index] = seen.join(' ');
  }

  write(index: number): void {
    for (const name of this.steps[index]!.writes) this.#held.set(name, index);
  }

  run(index: number): void {
    this.look(index);
    this.write(index);
  }

  get final(): [string, number][] {
    return [...this.#held].sort(([a], [b]) => (a < b ? -1 : 1));
  }
}

/** `simultaneous`: parallel steps all read before any writes; otherwise one after the other in the order given. */
function replay(
  steps: readonly Effects[],
  phases: readonly ProgramPhase[],
  order: 'simultaneous' | 'forward' | 'backward',
) {
  const machine = new Machine(steps);
  for (const { parallel, serial, transfers } of phases) {
    const list = order === 'backward' ? [...parallel].reverse() : parallel;
    if (order === 'simultaneous') {
      for (const i of list) machine.look(i);
      for (const i of list) machine.write(i);
    } else for (const i of list) machine.run(i);
    for (const i of [...serial, ...transfers]) machine.run(i);
  }
  return { saw: machine.saw, final: machine.final };
}

/** Every step once, and whatever the order within a phase, each sees what it sees in the order of the program. */
export function expectSameMeaning(steps: readonly Effects[], phases: readonly ProgramPhase[]): void {
  const scheduled = phases.flatMap(({ parallel, serial, transfers }) => [
    ...parallel,
    ...serial,
    ...transfers,
  ]);
  expect([...scheduled].sort((a, b) => a - b)).toEqual([...steps.keys()]);
  const machine = new Machine(steps);
  for (const i of steps.keys()) machine.run(i);
  const expected = { saw: machine.saw, final: machine.final };
  for (const order of ['simultaneous', 'forward', 'backward'] as const) {
    expect(replay(steps, phases, order)).toEqual(expected);
  }
}
