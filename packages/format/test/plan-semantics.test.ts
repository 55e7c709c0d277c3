import { GRID, OTHERS } from '@cflow/test-kit/plan-configs';
import { describe, expect, it } from 'vitest';
import { buildPlan, type CombineStyle, type ModelConfig } from '../src/index.js';
import { add, canonical, execute, Formulas, type Outcome, Symbols, type Value } from './plan-symbolic.js';

/** Report Eq. 4.9 to 4.16, layer by layer and without any plan. */
function residualModel(config: ModelConfig, f: Formulas): Value[] {
  const { denseDelay: dd, expertDelay: de, layers, combineStyle } = config;
  const s = combineStyle === 'parallelSqrt2' ? Math.SQRT1_2 : 1;
  const out: Value[] = [];
  const queue = new Map<number, Value[]>();
  let x = f.embedding();
  layers.forEach(({ ffn, experts }, l) => {
    const mid = add([x, 1], [f.attn(l, x), 1]);
    const source = combineStyle === 'asyncExperts' ? x : mid;
    let dense: Value = new Map();
    if (ffn && dd === 0) dense = f.ffn(l, source);
    if (ffn && dd > 0 && l >= dd) dense = f.ffn(l, out[l - dd]!);
    if (experts) {
      const target = Math.min(l + de, layers.length - 1);
      queue.set(target, [...(queue.get(target) ?? []), f.experts(l, source)]);
    }
    const injected = (queue.get(l) ?? []).map((e): [Value, number] => [e, s]);
    x = add([mid, 1], [dense, s], ...injected);
    out.push(x);
  });
  return out;
}

function decoupled(config: ModelConfig, f: Formulas): Value[] {
  let [a, d] = [f.embedding(), f.embedding()];
  return config.layers.map((_, l) => {
    [a, d] = [add([a, 1], [f.attn(l, a), 1]), add([d, 1], [f.ffn(l, d), 1])];
    if ((l + 1) % config.mergeInterval! === 0) a = d = add([a, 0.5], [d, 0.5]);
    return d;
  });
}

function registers(config: ModelConfig, f: Formulas): Value[] {
  let [attn, xfm] = [f.embedding(), f.embedding()];
  return config.layers.map((_, l) => {
    attn = add([attn, 1], [f.attn(l, attn), 1]);
    xfm = add([attn, 1], [f.ffn(l, xfm), 1]);
    return xfm;
  });
}

function iterated(config: ModelConfig, f: Formulas): Value[] {
  const out: Value[] = [];
  let x = f.embedding();
  for (const block of config.layers.keys()) {
    const entry = x;
    for (let i = 0; i < config.iterations!; i++) {
      const attn = f.attn(block, x);
      x = add([entry, 1], [attn, 1], [f.ffn(block, add([x, 1], [attn, 1])), 1]);
      out.push(x);
    }
  }
  return out;
}

const MODELS: Partial<Record<CombineStyle, typeof residualModel>> = {
  decoupledStreams: decoupled,
  pipelineRegisters: registers,
  fixedPoint: iterated,
};

function expected(config: ModelConfig, symbols: Symbols): Outcome {
  const f = new Formulas(symbols);
  const residuals = (MODELS[config.combineStyle] ?? residualModel)(config, f);
  return { residuals: residuals.map(canonical), logits: canonical(f.logits(config, residuals.at(-1)!)) };
}

describe('a plan computes the equations of report chapter 4', () => {
  it.each([...GRID, ...OTHERS])('%s', (_, config) => {
    const symbols = new Symbols();
    for (const transfers of ['none', 'overlap'] as const) {
      expect(execute(buildPlan(config, { transfers }), symbols)).toEqual(expected(config, symbols));
    }
  });

  it('tells a delay of one from none', () => {
    const at = (name: string) => new Map(GRID).get(name)!;
    const symbols = new Symbols();
    const plan = buildPlan(at('delayedSum both δd 1 δe 2'), { transfers: 'none' });
    expect(execute(plan, symbols)).not.toEqual(expected(at('delayedSum both δd 0 δe 2'), symbols));
    expect(execute(plan, symbols)).not.toEqual(expected(at('delayedSum both δd 1 δe 1'), symbols));
  });
});
