/**
 * Runs a plan over symbols instead of numbers. A value is a linear combination of atoms; whatever is not linear
 * becomes a new atom named by its operation and operands, so two values are equal exactly if their formulas are.
 */
import type { ExecutionPlan, ModelConfig, PlanStep } from '../src/index.js';

export type Value = ReadonlyMap<string, number>;

export class Symbols {
  private readonly ids = new Map<string, string>();

  atom(...parts: (string | number)[]): Value {
    const key = parts.join(' ');
    if (!this.ids.has(key)) this.ids.set(key, `#${this.ids.size}`);
    return new Map([[this.ids.get(key)!, 1]]);
  }

  /** A nonlinear function of values. */
  apply(name: string, ...operands: Value[]): Value {
    return this.atom(name, ...operands.map(canonical));
  }
}

export function canonical(value: Value): string {
  const terms = [...value].map(([atom, factor]) => `${atom}*${factor.toFixed(9)}`);
  return terms.sort().join('+') || '0';
}

export function add(...terms: [Value, number][]): Value {
  const sum = new Map<string, number>();
  for (const [value, factor] of terms) {
    for (const [atom, own] of value) sum.set(atom, (sum.get(atom) ?? 0) + own * factor);
  }
  return sum;
}

/** The parts of a layer as formulas, written from report §4.1 and not from the plan. */
export class Formulas {
  private caches = 0;
  constructor(readonly s: Symbols) {}

  embedding = () => this.s.apply('embed');
  norm = (name: string, x: Value) => this.s.apply(`norm ${name}`, x);
  matrix = (name: string, x: Value) => this.s.apply(`matrix ${name}`, x);

  attn(l: number, x: Value): Value {
    const n = this.norm(`layers.${l}.attn_norm.weight`, x);
    const [q, k, v] = ['q', 'k', 'v'].map((p) => this.matrix(`layers.${l}.attn.${p}_proj.weight`, n));
    const [rq, rk] = [this.s.apply('rope', q!), this.s.apply('rope', k!)];
    const heads = this.s.apply(`attend ${this.caches++}`, rq, rk, v!);
    return this.matrix(`layers.${l}.attn.o_proj.weight`, heads);
  }

  ffnNorm = (l: number, x: Value) => this.norm(`layers.${l}.ffn_norm.weight`, x);

  ffn(l: number, x: Value): Value {
    const n = this.ffnNorm(l, x);
    const [gate, up] = ['gate', 'up'].map((p) => this.matrix(`layers.${l}.ffn.${p}_proj.weight`, n));
    return this.matrix(`layers.${l}.ffn.down_proj.weight`, this.s.apply('glu', gate!, up!));
  }

  experts(l: number, x: Value): Value {
    const r = this.ffnNorm(l, x);
    const routing = this.s.apply('route', this.matrix(`layers.${l}.router.weight`, r));
    return this.s.apply(`experts ${l}`, r, routing);
  }

  logits(config: ModelConfig, x: Value): Value {
    const head = config.tiedEmbeddings ? 'embed_tokens.weight' : 'lm_head.weight';
    return this.matrix(head, this.norm('norm.weight', x));
  }
}

/** Residual after each layer, and the logits. */
export interface Outcome {
  residuals: string[];
  logits: string;
}

/** What all threads share in a phase, as `docs/architecture.md` says it; written apart from the step table. */
const PARALLEL = new Set(['matvec', 'attend', 'expertsUp', 'expertsDown']);

/**
 * Executes the plan. The parallel steps of a phase all read what stood there before the phase, so a dependency among them
 * gives a wrong formula; the serial ones follow in their order.
 */
export function execute(plan: ExecutionPlan, s: Symbols): Outcome {
  const memory = new Map<string, Value>();
  const residuals: string[] = [];
  for (let phase = 0; phase < plan.phaseCount; phase++) {
    const before = new Map(memory);
    for (const step of plan.steps.filter((candidate) => candidate.phase === phase)) {
      const seen = PARALLEL.has(step.op) ? before : memory;
      const read = (name: string): Value => seen.get(name) ?? s.atom(`unwritten ${name}`);
      for (const [name, value] of outputs(step, read, s)) memory.set(name, value);
    }
    for (const r of plan.residuals)
      if (r.phase === phase) residuals[r.layer] = canonical(memory.get(r.buffer)!);
  }
  return { residuals, logits: canonical(memory.get(plan.logits)!) };
}

/** What a step writes: buffers (and cache entries `k0`, `v0`, …) with their new values. */
function outputs(step: PlanStep, read: (name: string) => Value, s: Symbols): [string, Value][] {
  switch (step.op) {
    case 'call':
    case 'sync':
      return [];
    case 'embed':
      return [[step.out, s.apply('embed')]];
    case 'rmsNorm':
      return [[step.out, s.apply(`norm ${step.weight?.tensor}`, read(step.input))]];
    case 'matvec':
      return step.outs.map(({ out, matrix }) => [out, s.apply(`matrix ${matrix.tensor}`, read(step.input))]);
    case 'plainMatvec':
      return [[step.out, s.apply(`matrix ${step.weight.tensor}`, read(step.input))]];
    case 'rope':
    case 'clamp':
    case 'softcap':
      return [[step.buffer, s.apply(step.op, read(step.buffer))]];
    case 'append':
      return [
        [`k${step.cache}`, read(step.k)],
        [`v${step.cache}`, read(step.v)],
      ];
    case 'attend': {
      const operands = [step.q, `k${step.cache}`, `v${step.cache}`].map(read);
      return [[step.out, s.apply(`attend ${step.cache}`, ...operands)]];
    }
    case 'glu':
      return [[step.out, s.apply('glu', read(step.gate), read(step.up))]];
    case 'route':
      return [[step.out, s.apply('route', read(step.logits))]];
    case 'expertsUp':
      // Both halves together are one function of input and routing.
      return [[step.hidden, s.apply(`experts ${step.layer}`, read(step.input), read(step.routing))]];
    case 'expertsDown':
      return [[step.out, read(step.hidden)]];
    case 'sum':
      return [
        [step.out, add(...step.terms.map((t, i): [Value, number] => [read(t), step.coefficients[i]!]))],
      ];
  }
}
