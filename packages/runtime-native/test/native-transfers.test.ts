/** When fetched weights are called, used and released; and what predictions may and may not change. */
import {
  buildPlan,
  type ModelConfig,
  memorySource,
  PRESETS,
  TRANSFER_MODES,
  type TransferMode,
} from '@cflow/format';
import { layoutOnly } from '@cflow/test-kit/models';
import { GRID, OTHERS } from '@cflow/test-kit/plan-configs';
import { describe, expect, it } from 'vitest';
import { Model } from '../src/model.js';
import { lowerPlan } from '../src/native/lower.js';
import type { NativeProgram } from '../src/native/program.js';
import { modelSizes } from '../src/tiers/estimate.js';
import { goldenJson, type Trace } from './helpers.js';
import { goldenFile } from './model-file.js';

/** Lowered with all streams and all experts fetched. */
function fetched(config: ModelConfig, transfers: TransferMode, delayAware = true) {
  const file = layoutOnly(config);
  const plan = buildPlan(config, { transfers });
  const streams = new Set(
    modelSizes(plan, file, { context: 16, maxBatch: 1, valueBytes: 2 }).streams.map(({ name }) => name),
  );
  const experts = config.layers.some((layer) => layer.experts);
  const placement = { streams, experts };
  return lowerPlan(plan, file, { arithmetic: 'q8', delayAware, placement });
}

const CONFIGS: [string, ModelConfig][] = [
  ...Object.entries(PRESETS),
  ...GRID.filter((_, i) => i % 2 === 0),
  ...OTHERS,
];
const ARMS = TRANSFER_MODES.filter((mode) => mode !== 'none');

/** What a step uses of what is fetched. */
function uses(step: NativeProgram['steps'][number]): string | undefined {
  if ((step.op === 'expertsUp' || step.op === 'expertsDown') && step.bank >= 0) return `bank ${step.bank}`;
  if ((step.op === 'matvec' || step.op === 'gatedMatvec') && step.stream >= 0) return `stream ${step.stream}`;
  return undefined;
}

function named(step: NativeProgram['steps'][number]): string {
  if ('bank' in step) return `bank ${step.bank}`;
  return 'stream' in step ? `stream ${step.stream}` : '';
}

/** Follows a token through the phases: what is called, in order, and what is in memory at most. */
function follow({ steps, phases }: NativeProgram) {
  const held = new Set<string>();
  const used = new Set<string>();
  const called: string[] = [];
  const most = { bank: 0, stream: 0 };
  const count = (kind: string) => [...held].filter((name) => name.startsWith(kind)).length;
  for (const { parallel, transfers } of phases) {
    for (const index of parallel) {
      const name = uses(steps[index]!);
      if (name === undefined) continue;
      expect(held, `${steps[index]!.op} uses ${name}`).toContain(name);
      used.add(name);
    }
    for (const index of transfers) {
      const step = steps[index]!;
      const name = named(step);
      if (step.op === 'callExperts' && step.ahead)
        expect(called, 'predictions come first').not.toContain(name);
      else if (step.op.startsWith('call')) {
        expect(called, 'once a token').not.toContain(name);
        called.push(name);
        held.add(name);
      } else if (step.op.startsWith('sync')) expect(held).toContain(name);
      else {
        expect(used, 'not released before it is used').toContain(name);
        expect(held.delete(name)).toBe(true);
      }
      most.bank = Math.max(most.bank, count('bank'));
      most.stream = Math.max(most.stream, count('stream'));
    }
  }
  expect([...held], 'released').toEqual([]);
  expect([...used].sort()).toEqual([...called].sort());
  return { called, most };
}

describe('transfers', () => {
  it.each(ARMS)(
    '%s: everything is called before it is used, once, and released behind its last use',
    (transfers) => {
      for (const [name, config] of CONFIGS) {
        for (const delayAware of [true, false]) {
          const { program, liveStreams } = fetched(config, transfers, delayAware);
          const { called, most } = follow(program);
          const streams = called.filter((each) => each.startsWith('stream'));
          expect(streams, name).toEqual(streams.map((_, i) => `stream ${i}`));
          expect(program.tiers.streams, name).toHaveLength(2 * streams.length);
          expect(most.stream, name).toBe(liveStreams);
          expect(most.bank, name).toBeLessThanOrEqual(config.expertDelay + 1);
          const syncs = program.steps.filter(({ op }) => op.startsWith('sync')).length;
          expect(syncs, name).toBe(transfers === 'stall' ? called.length : 0);
        }
      }
    },
  );

  /** The phase of each step of a kind, by bank. */
  function phasesOf(config: ModelConfig, transfers: TransferMode, op: string): number[] {
    const { steps, phases } = fetched(config, transfers).program;
    const found: number[] = [];
    for (const [at, { parallel, transfers: moved }] of phases.entries()) {
      for (const index of [...parallel, ...moved]) {
        const step = steps[index]!;
        if (step.op === op && 'bank' in step && !('ahead' in step && step.ahead)) found[step.bank] = at;
      }
    }
    return found;
  }

  it('experts with a delay of two layers have two layers of time', () => {
    // Three phases a layer (see native-schedule.test.ts): routed in the last of layer l, injected in the last of l + 2,
    // but not behind the last layer, whose own experts take two phases more.
    const config = PRESETS.arch2_4!;
    expect(phasesOf(config, 'overlap', 'callExperts')).toEqual([3, 6, 9, 12, 15, 18]);
    expect(phasesOf(config, 'overlap', 'expertsDown')).toEqual([9, 12, 15, 20, 20, 20]);
    expect(phasesOf(config, 'overlap', 'expertsUp')).toEqual([8, 11, 14, 19, 19, 19]);
    expect(phasesOf(config, 'overlap', 'releaseExperts')).toEqual([9, 12, 15, 20, 20, 20]);
    expect(phasesOf(config, 'stall', 'expertsUp')).toEqual([4, 7, 10, 13, 16, 19]);
  });

  it('late experts cost no barrier', () => {
    for (const [name, config] of CONFIGS) {
      const count = (transfers: TransferMode) => fetched(config, transfers).program.phases.length;
      expect(count('overlap'), name).toBe(count('stall'));
    }
  });
});

describe('predictions', () => {
  const predicted = (config: ModelConfig, transfers: TransferMode) =>
    buildPlan(config, { transfers }).steps.flatMap((step) =>
      step.op === 'call' && step.target.kind === 'experts' && step.target.predicted
        ? [step.target.layer]
        : [],
    );

  it('are made for all undelayed experts but those of the first layer, and in one mode only', () => {
    let made = 0;
    for (const [name, config] of CONFIGS) {
      const layers = [...config.layers.keys()].filter((layer) => layer > 0 && config.layers[layer]!.experts);
      const expected = config.expertDelay > 0 ? [] : layers;
      expect(predicted(config, 'predict'), name).toEqual(expected);
      made += expected.length;
      for (const mode of ['none', 'stall', 'overlap'] as const)
        expect(predicted(config, mode), name).toEqual([]);
    }
    expect(made).toBeGreaterThan(10);
  });

  it('add steps, and leave the others as they are', () => {
    for (const [name, config] of CONFIGS) {
      const computing = (transfers: TransferMode) =>
        buildPlan(config, { transfers })
          .steps.filter(({ op }) => op !== 'call' && op !== 'sync')
          .map(({ phase: _, ...body }) => JSON.stringify(body))
          .filter((body) => !/prediction|predictedRouting/.test(body));
      expect(computing('predict').sort(), name).toEqual(computing('none').sort());
    }
  });

  it.each(['arch2_4_sync', 'arch2_4', 'trained_arch2_4_sync', 'trained_arch2_4'])(
    '%s: the reference engine gives the same bits in every mode',
    async (arch) => {
      const { bytes } = await goldenFile(arch);
      const { tokens } = goldenJson(arch, 'trace.json') as Trace;
      const run = async (transfers: TransferMode) => {
        const model = await Model.open(memorySource(bytes), { engine: 'reference', transfers });
        const all: Float32Array[] = [];
        await model.createSession().prefill(tokens, { onLogits: (_, logits) => all.push(logits.slice()) });
        await model.close();
        return all;
      };
      const expected = await run('none');
      for (const transfers of ARMS) expect(await run(transfers)).toEqual(expected);
    },
  );
});
