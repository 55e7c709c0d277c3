import { GRID, OTHERS, tiny } from '@cflow/test-kit/plan-configs';
import { describe, expect, it } from 'vitest';
import {
  barriersPerToken,
  buildPlan,
  type ExecutionPlan,
  firstAsked,
  formatPlan,
  type ModelConfig,
  type PlanStep,
  PRESETS,
  parseModelConfig,
  planLayout,
} from '../src/index.js';

const ALL: [string, ModelConfig][] = [...Object.entries(PRESETS), ...GRID, ...OTHERS];
/** One test over every preset and the whole grid; a failure names the configuration. */
function forAll(title: string, check: (config: ModelConfig, name: string) => void): void {
  it(`${title} (${ALL.length} configurations)`, () => {
    for (const [name, config] of ALL) check(config, name);
  });
}

const arch2 = PRESETS.arch2_4!;

/** Every name that a step touches, by the fields of the step: written ones and read ones. */
function touched(step: PlanStep): { reads: string[]; writes: string[] } {
  const fields = step as unknown as Record<string, unknown>;
  const names = (...keys: string[]) =>
    keys
      .flatMap((key) => (fields[key] ?? []) as string | (string | { out: string })[])
      .map((value) => (typeof value === 'string' ? value : value.out));
  const cache = 'cache' in step ? [`cache ${step.cache}`] : [];
  const reads = names('input', 'buffer', 'k', 'v', 'q', 'gate', 'up', 'logits', 'routing', 'terms');
  if (step.op === 'expertsDown') reads.push(step.hidden);
  const writes = names('out', 'outs', 'buffer', ...(step.op === 'expertsUp' ? ['hidden'] : []));
  return step.op === 'append'
    ? { reads, writes: [...writes, ...cache] }
    : { reads: [...reads, ...cache], writes };
}

const PARALLEL = new Set(['matvec', 'attend', 'expertsUp', 'expertsDown']);

/** What parallel steps of one phase do to one another; tiny routers are serial. */
function conflicts(plan: ExecutionPlan): string[] {
  const found: string[] = [];
  const compute = plan.steps.filter(({ op }) => PARALLEL.has(op));
  for (const [i, a] of compute.entries()) {
    for (const b of compute.slice(i + 1)) {
      if (b.phase !== a.phase) break;
      const [x, y] = [touched(a), touched(b)];
      const clash = [
        ...x.writes.filter((n) => [...y.reads, ...y.writes].includes(n)),
        ...y.writes.filter((n) => x.reads.includes(n)),
      ];
      found.push(...clash.map((name) => `phase ${a.phase}: ${a.op} and ${b.op} on ${name}`));
    }
  }
  return found;
}

describe('phases', () => {
  forAll(
    'parallel steps of a phase are independent, phases are in order and none is empty',
    (config, name) => {
      const plan = buildPlan(config, { transfers: 'overlap' });
      expect(conflicts(plan), name).toEqual([]);
      const phases = plan.steps.map(({ phase }) => phase);
      expect(phases, name).toEqual([...phases].sort((a, b) => a - b));
      expect(new Set(phases).size, name).toBe(plan.phaseCount);
    },
  );

  forAll('every buffer of a step is declared, once', (config, name) => {
    const plan = buildPlan(config, { transfers: 'none' });
    const declared = plan.buffers.map(({ name }) => name);
    expect(new Set(declared).size, name).toBe(declared.length);
    const used = new Set(plan.steps.flatMap((step) => Object.values(touched(step)).flat()));
    expect([...used].filter((name) => !name.startsWith('cache ')).sort(), name).toEqual([...declared].sort());
  });

  it('puts gate and up of a layer into the phase of its Q, K and V with a dense delay of one', () => {
    const plan = buildPlan(arch2, { transfers: 'none' });
    const phaseOf = (tensor: string) =>
      plan.steps.find((s) => s.op === 'matvec' && s.outs.some(({ matrix }) => matrix.tensor === tensor))
        ?.phase;
    for (let l = 1; l < 6; l++) {
      expect(phaseOf(`layers.${l}.attn.q_proj.weight`)).toBeDefined();
      expect(phaseOf(`layers.${l}.ffn.up_proj.weight`)).toBe(phaseOf(`layers.${l}.attn.q_proj.weight`));
    }
  });

  it('needs fewer barriers with delays than without', () => {
    const undelayed = parseModelConfig({ ...arch2, denseDelay: 0, expertDelay: 0 });
    const noDense = parseModelConfig({ ...arch2, denseDelay: 0 });
    const barriers = (config: ModelConfig) => barriersPerToken(buildPlan(config, { transfers: 'none' }));
    // Per layer Q, K, V with gate and up; attention with down; O. In the last one experts take two more; and the head.
    expect(barriers(arch2)).toBe(6 * 3 + 2 + 1);
    expect(barriers(arch2)).toBeLessThan(barriers(noDense));
    expect(barriers(noDense)).toBeLessThan(barriers(undelayed) + 1);
  });

  it('runs delayed experts between their routing and their injection, one per layer', () => {
    const at = (transfers: 'none' | 'overlap') => {
      const { steps } = buildPlan(arch2, { transfers });
      const experts = steps.flatMap((s) => (s.op === 'expertsDown' ? [s] : []));
      expect(experts.map((s) => s.layer).sort()).toEqual([0, 1, 2, 3, 4, 5]);
      const attend = steps.find((s) => s.op === 'attend' && s.cache === 2)!;
      return experts.find((s) => s.layer === 0)!.phase - attend.phase;
    };
    // Those of layer 0 are routed behind its O and injected at the end of layer 2. In memory, gate and up share the phase
    // of Q, K, V of layer 1 and down that of its attention; fetched meanwhile, down waits for the O of layer 2.
    expect(at('none')).toBe(-3);
    expect(at('overlap')).toBe(1);
  });

  it('has no more residuals than the delay needs', () => {
    const ring = (denseDelay: number) =>
      buildPlan(parseModelConfig({ ...arch2, denseDelay }), { transfers: 'none' }).buffers.filter(
        ({ name }) => name.startsWith('residual.'),
      ).length;
    expect([0, 1, 2, 3, 4].map(ring)).toEqual([2, 2, 2, 3, 4]);
  });

  it('gives layers of another geometry buffers of their own', () => {
    const layers = arch2.layers.map((layer, l) =>
      l % 2
        ? { ...layer, attention: { ...layer.attention, headDim: 32, rope: { theta: 1e4, rotaryDim: 32 } } }
        : layer,
    );
    const plan = buildPlan(parseModelConfig({ ...arch2, layers }), { transfers: 'none' });
    const lengths = new Map(plan.buffers.map(({ name, length }) => [name, length]));
    const q = plan.steps.flatMap((s) => (s.op === 'attend' ? [[lengths.get(s.q), s.heads * s.headDim]] : []));
    expect(q).toEqual([
      [512, 512],
      [256, 256],
      [512, 512],
      [256, 256],
      [512, 512],
      [256, 256],
    ]);
  });
});

describe('properties of a layer', () => {
  const { layers, ...rest } = tiny(['both'], {
    tiedEmbeddings: true,
    scaleEmbeddings: true,
    finalLogitSoftcap: 30,
  });
  const { rope: _, ...attention } = layers[0]!.attention;
  const config = parseModelConfig({
    ...rest,
    layers: [
      {
        ...layers[0],
        attention: {
          ...attention,
          qkNorm: 'head',
          vNorm: true,
          biasQkv: true,
          biasOut: true,
          softcap: 50,
          slidingWindow: 7,
        },
        ffn: { ...layers[0]!.ffn, bias: true },
        experts: { ...layers[0]!.experts, normalizeTopK: false },
      },
    ],
  });
  const plan = buildPlan(config, { transfers: 'none' });
  const of = <Op extends PlanStep['op']>(op: Op) =>
    plan.steps.filter((step): step is Extract<PlanStep, { op: Op }> => step.op === op);

  it('become steps and fields of steps', () => {
    const headNorms = of('rmsNorm').filter(({ out }) => ['q', 'k', 'v'].includes(out));
    expect(
      headNorms.map(({ input, out, groupSize, weight }) => [input, out, groupSize, weight?.tensor]),
    ).toEqual([
      ['q', 'q', 8, 'layers.0.attn.q_norm.weight'],
      ['k', 'k', 8, 'layers.0.attn.k_norm.weight'],
      ['v', 'v', 8, undefined],
    ]);
    expect(of('rope')).toEqual([]);
    expect(of('attend')[0]).toMatchObject({
      heads: 4,
      kvHeads: 2,
      headDim: 8,
      scale: 0.35,
      softcap: 50,
      window: 7,
    });
    expect(plan.caches).toEqual([{ cache: 0, layer: 0, width: 16, window: 7 }]);
    expect(of('route')[0]!.normalize).toBe(false);
    expect(of('softcap')).toMatchObject([{ buffer: 'logits', cap: 30 }]);
    expect(of('embed')[0]!.scale).toBeCloseTo(5.656854, 6);
    const biases = of('matvec').flatMap((step) => step.outs.flatMap(({ bias }) => bias?.tensor ?? []));
    expect(biases.sort()).toEqual([
      ...['k_proj', 'o_proj', 'q_proj', 'v_proj'].map((name) => `layers.0.attn.${name}.bias`),
      ...['down_proj', 'gate_proj', 'up_proj'].map((name) => `layers.0.ffn.${name}.bias`),
    ]);
    expect(of('matvec').at(-1)!.outs[0]!.matrix).toEqual({
      stream: 'embedding',
      tensor: 'embed_tokens.weight',
    });
  });

  it('normalises the whole projection where the model does', () => {
    const whole = tiny(['dense'], {});
    const layer = {
      ...whole.layers[0]!,
      attention: { ...whole.layers[0]!.attention, qkNorm: 'whole' as const },
    };
    const { steps } = buildPlan(parseModelConfig({ ...whole, layers: [layer] }), { transfers: 'none' });
    const groups = steps.flatMap((s) =>
      s.op === 'rmsNorm' && s.out !== 'attnIn' ? [[s.out, s.groupSize]] : [],
    );
    expect(groups.slice(0, 2)).toEqual([
      ['q', 32],
      ['k', 16],
    ]);
  });
});

describe('transfers', () => {
  const compute = (plan: ExecutionPlan) => plan.steps.filter(({ op }) => op !== 'call' && op !== 'sync');

  /** What is computed, whatever the phase. */
  const bodies = (plan: ExecutionPlan) => compute(plan).map(({ phase: _, ...body }) => JSON.stringify(body));

  forAll('the modes differ in transfer steps and the phases of experts alone', (config, name) => {
    const [none, stall, overlap] = (['none', 'stall', 'overlap'] as const).map((transfers) =>
      buildPlan(config, { transfers }),
    );
    expect(compute(none!), name).toEqual(none!.steps);
    expect(compute(stall!), name).toEqual(none!.steps);
    expect(bodies(overlap!).sort(), name).toEqual(bodies(none!).sort());
    const rest = (plan: ExecutionPlan) => compute(plan).filter(({ op }) => !op.startsWith('experts'));
    expect(rest(overlap!), name).toEqual(rest(none!));
  });

  forAll('nothing is used before it is synced, or synced before it is called', (config, name) => {
    for (const transfers of ['stall', 'overlap'] as const) {
      const called: string[] = [];
      const present = new Set<string>();
      const routed = new Map<string, number>();
      for (const step of buildPlan(config, { transfers }).steps) {
        const key = 'target' in step ? JSON.stringify(step.target) : '';
        if (step.op === 'call') {
          called.push(key);
          if (step.target.kind === 'experts')
            expect(routed.get(step.target.routing), name).toBeLessThan(step.phase);
        }
        if (step.op === 'sync') {
          expect(called, name).toContain(key);
          present.add(key);
        }
        if (step.op === 'route') routed.set(step.out, step.phase);
        const weights =
          step.op === 'matvec'
            ? step.outs.map(({ matrix }) => matrix)
            : (step.op === 'rmsNorm' || step.op === 'plainMatvec') && step.weight
              ? [step.weight]
              : [];
        for (const { stream } of weights)
          expect(present, name).toContain(JSON.stringify({ kind: 'stream', stream }));
        if (step.op === 'expertsUp') {
          const { layer, routing } = step;
          expect(present, name).toContain(JSON.stringify({ kind: 'experts', layer, routing }));
        }
      }
      expect(new Set(called).size, name).toBe(called.length);
      expect(present.size, name).toBe(called.length);
    }
  });

  it('calls in the phase of the sync when stalling, and a layer ahead when overlapping', () => {
    const gap = (transfers: 'stall' | 'overlap', stream: string) => {
      const { steps } = buildPlan(arch2, { transfers });
      const of = (op: 'call' | 'sync') =>
        steps.find((s) => s.op === op && s.target.kind === 'stream' && s.target.stream === stream)!.phase;
      return of('sync') - of('call');
    };
    expect(gap('stall', 'layers.3.attention')).toBe(0);
    expect(gap('stall', 'layers.3.dense')).toBe(0);
    expect(gap('overlap', 'layers.3.attention')).toBe(3);
    expect(gap('overlap', 'layers.3.dense')).toBe(3);
  });

  forAll('streams are asked for in the order of the file', (config, name) => {
    const asked = firstAsked(buildPlan(config, { transfers: 'none' }));
    const file = planLayout(config, 'q4_0', 'cflow', 0).regions.flatMap(({ stream }) =>
      stream ? [stream.name] : [],
    );
    expect(asked, name).toEqual(file.filter((name) => asked.includes(name)));
    const left = file.filter(
      (name) => !asked.includes(name) && !name.includes('.experts.') && name !== 'embedding',
    );
    const never = config.layers.flatMap(({ ffn, experts }, l) =>
      ffn && !experts && l < config.denseDelay ? [`layers.${l}.dense`] : [],
    );
    expect(left.sort(), name).toEqual(never.sort());
  });

  it('asks for arch2_4 slot by slot', () => {
    const asked = firstAsked(buildPlan(arch2, { transfers: 'overlap' }));
    const slot = (l: number) => [
      `layers.${l}.attention`,
      ...(l < 5 ? [`layers.${l + 1}.dense`] : []),
      `layers.${l}.router`,
    ];
    const [attention, ...rest] = [0, 1, 2, 3, 4, 5].flatMap(slot);
    expect(asked).toEqual([attention, 'layers.0.dense', ...rest, 'final_norm', 'lm_head']);
  });
});

describe('formatPlan', () => {
  forAll('fits in 100 columns and shows every phase', (config, name) => {
    const plan = buildPlan(config, { transfers: 'overlap' });
    const lines = formatPlan(plan).split('\n');
    expect(
      lines.filter((line) => line.length > 100),
      name,
    ).toEqual([]);
    expect(lines.filter((line) => /^phase \d+/.test(line)).length, name).toBe(plan.phaseCount);
  });

  it('reads like this', () => {
    const lines = formatPlan(buildPlan(arch2, { transfers: 'overlap' })).split('\n');
    expect(lines.slice(0, 4)).toEqual([
      'plan of arch2_4: delayedSum, transfers overlap',
      'delays: dense 1, experts 2 layers',
      '159 steps in 22 phases, 21 barriers a token',
      '29 buffers of 68709 f32, 6 KV caches',
    ]);
    expect(lines).toContain(
      '  parallel  matvec       q, k, v = layers.0.attn.{q_proj,k_proj,v_proj}.weight x attnIn',
    );
    expect(lines).toContain(
      '            sum          residual.0 = residual.1 + attnOut + ffnOut + expertOut.0',
    );
  });
});
