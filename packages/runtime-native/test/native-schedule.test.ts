/** The lowering and the schedule, without the addon: phases must mean what the order of the program means. */
import {
  barrierCount,
  barriersPerToken,
  buildPlan,
  DTYPES,
  type Dtype,
  type ExecutionPlan,
  MATRIX_IDS,
  type ModelConfig,
  openModel,
  type Phase,
  PRESETS,
  type ProgramStep,
  parseModelConfig,
  type SchedulableStep,
  schedule,
  stepRun,
  type TiledMatrix,
} from '@cflow/format';
import { layoutOnly } from '@cflow/test-kit/models';
import { GRID, OTHERS } from '@cflow/test-kit/plan-configs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type LowerOptions, lowerPlan } from '../src/native/lower.js';
import type { NativeProgram } from '../src/native/program.js';
import { goldenJson } from './helpers.js';
import { countingSource, goldenFile } from './model-file.js';
import { effects, expectSameMeaning, planEffects } from './schedule-machine.js';

const planOf = (config: ModelConfig) => buildPlan(config, { transfers: 'none' });

function lower(
  config: ModelConfig,
  options: Partial<LowerOptions> = {},
  dtype: Dtype = 'q4_0',
  plan: ExecutionPlan = planOf(config),
): NativeProgram {
  return lowerPlan(plan, layoutOnly(config, dtype), { arithmetic: 'q8', delayAware: true, ...options })
    .program;
}

const llama = (layers = 22) =>
  parseModelConfig({
    name: 'llama-1b',
    family: 'llama',
    hiddenDim: 2048,
    vocabSize: 32_000,
    contextLength: 2048,
    normEps: 1e-5,
    combineStyle: 'sequential',
    layers: Array.from({ length: layers }, () => ({
      attention: {
        heads: 32,
        kvHeads: 4,
        headDim: 64,
        scale: 0.125,
        rope: { theta: 10_000, rotaryDim: 64 },
      },
      ffn: { dim: 5632, activation: 'silu' },
    })),
  });

const CONFIGS: [string, ModelConfig][] = [
  ...Object.entries(PRESETS),
  ...GRID.filter((_, i) => i % 3 === 0),
  ...OTHERS,
  ['llama', llama(3)],
];

/** The phases of a program: the transfers that open a phase of the schedule end the one before it. */
const asProgramPhases = (phases: readonly Phase[]) => [
  { parallel: [], serial: [], transfers: phases[0]?.transfer ?? [] },
  ...phases.map(({ parallel, serial }, i) => ({
    parallel,
    serial,
    transfers: phases[i + 1]?.transfer ?? [],
  })),
];

describe('schedule', () => {
  it.each(CONFIGS)('%s means the same in phases', (_name, config) => {
    for (const arithmetic of ['q8', 'f32'] as const) {
      for (const delayAware of [true, false]) {
        const { steps, phases } = lower(config, { arithmetic, delayAware });
        expectSameMeaning(
          steps.map((step) => effects(step, arithmetic === 'q8')),
          phases,
        );
      }
    }
  });

  it('any program means the same in phases', () => {
    const name = fc.constantFrom('a', 'b', 'c', 'd', 'e');
    const step = fc.record({
      reads: fc.array(name, { maxLength: 3 }),
      writes: fc.uniqueArray(name, { minLength: 1, maxLength: 2 }),
      runs: fc.constantFrom('parallel', 'serial', 'transfer'),
      late: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 40 }), fc.boolean(), (steps: SchedulableStep[], delayAware) => {
        const phases = schedule(steps, { delayAware });
        expectSameMeaning(steps, asProgramPhases(phases));
        if (!delayAware) expect(phases.every(({ parallel }) => parallel.length <= 1)).toBe(true);
      }),
      { numRuns: 500, seed: 1 },
    );
  });

  it.each(CONFIGS)('%s: the phases of the plan mean what its order means', (_name, config) => {
    for (const transfers of ['none', 'predict'] as const) {
      const { steps, phaseCount } = buildPlan(config, { transfers });
      const phases = Array.from({ length: phaseCount }, (_, phase) => {
        const own = (runs: string) =>
          [...steps.entries()].flatMap(([i, step]) =>
            step.phase === phase && stepRun(step) === runs ? [i] : [],
          );
        return { transfer: own('transfer'), parallel: own('parallel'), serial: own('serial') };
      });
      expectSameMeaning(steps.map(planEffects), asProgramPhases(phases));
    }
  });

  it('a step does not precede the phase of the one that it names', () => {
    const step = (writes: string, reads: string[], notBefore?: number): SchedulableStep => ({
      runs: 'parallel',
      reads,
      writes: [writes],
      notBefore,
    });
    const steps = [step('a', []), step('b', ['a']), step('c', []), step('d', [], 1)];
    const phases = schedule(steps, { delayAware: true });
    expect(phases.map(({ parallel }) => parallel)).toEqual([
      [0, 2],
      [1, 3],
    ]);
  });

  it('puts independent parallel steps into one phase and dependent ones behind each other', () => {
    const step = (parallel: boolean, reads: string[], writes: string[]): SchedulableStep => ({
      runs: parallel ? 'parallel' : 'serial',
      reads,
      writes,
    });
    const steps = [
      step(false, [], ['x']),
      step(true, ['x'], ['q']),
      step(true, ['x'], ['g']),
      step(false, ['q'], ['q']),
      step(true, ['q'], ['o']),
      // Overwrites what step 2 read: only after it, yet as serial work of its phase.
      step(false, [], ['x']),
      step(true, ['g'], ['x']),
    ];
    expect(schedule(steps, { delayAware: true })).toEqual([
      { transfer: [], parallel: [], serial: [0] },
      { transfer: [], parallel: [1, 2], serial: [3, 5] },
      { transfer: [], parallel: [4, 6], serial: [] },
    ]);
    expect(barrierCount(schedule(steps, { delayAware: true }))).toBe(2);
    expect(barrierCount(schedule(steps, { delayAware: false }))).toBe(4);
  });

  it('the head comes after everything else', () => {
    for (const [, config] of CONFIGS) {
      const { steps, phases, headPhase, output } = lower(config);
      const late = phases.slice(headPhase).flatMap(({ parallel, serial }) => [...parallel, ...serial]);
      const kinds = late.map((i) => steps[i]!.op);
      expect(kinds).toEqual(config.finalLogitSoftcap ? ['matvec', 'softcap'] : ['matvec']);
      expect(steps[late[0]!]).toMatchObject({ outs: [{ out: output }] });
    }
  });

  it('a trace adds copies and changes nothing else that runs', () => {
    for (const [, config] of CONFIGS) {
      const plan = planOf(config);
      const traced = lower(config, { trace: plan.residuals }, 'q4_0', plan);
      const steps = traced.steps.filter(({ op }) => op !== 'copy');
      const plain = lower(config);
      expect(steps.map(({ op }) => op)).toEqual(plain.steps.map(({ op }) => op));
      expect(traced.steps).toHaveLength(plain.steps.length + plan.residuals.length + 2);
      const width = config.hiddenDim * plan.residuals.length;
      expect(traced.buffers[traced.output]).toBe(config.vocabSize + width);
      expect(barrierCount(traced.phases)).toBe(barrierCount(plain.phases));
    }
    const nowhere = { trace: [{ buffer: 'logits', phase: 0 }] };
    expect(() => lower(CONFIGS[0]![1], nowhere)).toThrow(/no step up to phase 0 writes buffer logits/);
  });

  /**
   * Counted by hand: a layer whose FFN is delayed takes three (QKV with gate and up; attention with down; output), one
   * that is not takes five; undelayed experts take two more; experts of the last layer wait for its router; and the head.
   */
  it.each([
    ['arch1', 3 * 6 + 1, 5 * 6 + 1],
    ['arch2_4', 3 * 6 + 2 + 1, 5 * 6 - 2 + 2 * 6 + 1],
    ['arch2_4_sync', (3 + 2) * 6 + 1, 5 * 6 - 2 + 2 * 6 + 1],
    ['arch3', 3 * 6 + 1, 5 * 6 + 1],
    ['arch4', 3 * 6 + 1, 7 * 6 + 1],
    ['arch5', 5 * 2 * 3 + 1, 5 * 2 * 3 + 1],
    ['llama', 5 * 22 + 1, 5 * 22 + 1],
  ])('%s takes %i barriers, %i when its delays are not used', (name, aware, unaware) => {
    const config = PRESETS[name] ?? llama();
    const count = (delayAware: boolean) => barrierCount(lower(config, { delayAware }).phases);
    expect([count(true), count(false)]).toEqual([aware, unaware]);
  });

  it('plan and program have the same barriers, of every configuration', () => {
    for (const [name, config] of CONFIGS) {
      for (const transfers of ['none', 'overlap'] as const) {
        const plan = buildPlan(config, { transfers });
        const placement = { streams: new Set<string>(), experts: transfers === 'overlap' };
        for (const delayAware of [true, false]) {
          const { phases } = lower(config, { delayAware, placement }, 'q4_0', plan);
          expect(barriersPerToken(plan, { delayAware }), name).toBe(barrierCount(phases));
        }
      }
    }
  });
});

const int8Readers = (step: ProgramStep): number | undefined =>
  step.op === 'matvec' || step.op === 'gatedMatvec' || step.op === 'expertsUp'
    ? step.input
    : step.op === 'expertsDown'
      ? step.hidden
      : undefined;

describe('lowering', () => {
  it.each(CONFIGS)('%s makes every int8 form once, before it is read', (_name, config) => {
    const { steps, buffers } = lower(config);
    const fresh = new Set<number>();
    for (const step of steps) {
      if (step.op === 'quantize') {
        expect(fresh.has(step.input)).toBe(false);
        expect(step.parts * step.partLength).toBe(buffers[step.input]);
        fresh.add(step.input);
        continue;
      }
      const read = int8Readers(step);
      if (read !== undefined) expect(fresh.has(read)).toBe(true);
      for (const name of effects(step, true).writes) fresh.delete(Number(name));
    }
  });

  it('f32 arithmetic, and tiles without scales, take no int8 form', () => {
    const has = (program: NativeProgram) => program.steps.some(({ op }) => op === 'quantize');
    const config = PRESETS.arch2_4!;
    expect(has(lower(config))).toBe(true);
    expect(has(lower(config, { arithmetic: 'f32' }))).toBe(false);
    expect(has(lower(config, {}, 'f16'))).toBe(false);
    expect(lower(config, {}, 'f16').dtype).toBe(DTYPES.f16.id);
  });

  it('fuses gate, up and GLU, and drops their buffers', () => {
    const { steps, buffers } = lower(PRESETS.arch3!);
    expect(steps.filter(({ op }) => op === 'gatedMatvec')).toHaveLength(6);
    expect(steps.some(({ op }) => op === 'glu')).toBe(false);
    // Of width 2,048 only the product is left.
    expect(buffers.filter((length) => length === 2048)).toHaveLength(1);
  });

  it('keeps the GLU apart where something else reads the gate', () => {
    const plan = planOf(PRESETS.arch3!);
    const at = plan.steps.findIndex(({ op }) => op === 'glu');
    const extra = {
      op: 'sum',
      phase: plan.steps[at]!.phase,
      terms: ['gate'],
      coefficients: [1],
      out: 'spy',
    } as const;
    const spied: ExecutionPlan = {
      ...plan,
      buffers: [...plan.buffers, { name: 'spy', length: 2048 }],
      steps: [...plan.steps.slice(0, at + 1), extra, ...plan.steps.slice(at + 1)],
    };
    const { steps } = lower(PRESETS.arch3!, {}, 'q4_0', spied);
    expect(steps.filter(({ op }) => op === 'gatedMatvec')).toHaveLength(5);
    expect(steps.filter(({ op }) => op === 'glu')).toHaveLength(1);
  });

  it('shares rotary tables between layers of one geometry', () => {
    const { ropes } = lower(PRESETS.arch2_4!);
    expect(ropes).toHaveLength(1);
    expect(ropes[0]).toHaveLength(32);
    expect(ropes[0]![1]).toBeCloseTo(10_000 ** (-2 / 64), 14);
  });

  it.each(['cflow', 'vflow'] as const)('offsets of %s point at the tiles they name', async (container) => {
    const { bytes, config } = await goldenFile('arch2_4', { container, dtype: 'q4_0' });
    const file = await openModel(countingSource(bytes));
    const { steps } = lowerPlan(planOf(config), file, { arithmetic: 'q8', delayAware: true }).program;
    const view = new DataView(bytes.buffer, bytes.byteOffset);
    // Tile header of version 5 (docs/format.md): layer u16, matrix u8, expert u8 (0xff = none), row_offset u32.
    const header = (at: number) => [
      view.getUint8(at + 2),
      view.getUint8(at + 3),
      view.getUint32(at + 4, true),
    ];
    const check = (matrix: TiledMatrix, name: keyof typeof MATRIX_IDS, base = 0, expert = 0xff) => {
      expect(matrix.stripes).toHaveLength(Math.ceil(matrix.rows / 128));
      for (const [i, stripe] of matrix.stripes.entries()) {
        expect(header(base + stripe)).toEqual([MATRIX_IDS[name], expert, 128 * i]);
      }
    };
    let checked = 0;
    for (const step of steps) {
      if (step.op === 'embed') check(step.matrix, 'embedding');
      if (step.op === 'gatedMatvec') [check(step.gate, 'gate'), check(step.up, 'up')];
      if (step.op === 'expertsUp') {
        for (const [e, base] of step.experts.entries()) check(step.up, 'expert_up', base, e);
        for (const [e, base] of step.experts.entries()) check(step.gate, 'expert_gate', base, e);
      }
      if (step.op === 'expertsDown') {
        for (const [e, base] of step.experts.entries()) check(step.down, 'expert_down', base, e);
      }
      if (step.op === 'matvec' && step.outs.length === 3) {
        for (const [i, name] of (['q', 'k', 'v'] as const).entries()) check(step.outs[i]!.matrix, name);
      }
      if (step.op !== 'rmsNorm' || step.weight < 0) continue;
      // Norm weights of a trained model are around one.
      expect(Math.abs(view.getFloat32(step.weight, true))).toBeLessThan(4);
      checked++;
    }
    expect(checked).toBeGreaterThan(2 * config.layers.length);
    expect((goldenJson('arch2_4', 'config.json') as { layers: unknown[] }).layers).toHaveLength(
      config.layers.length,
    );
  });
});
