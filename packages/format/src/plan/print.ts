/** Plans for people: one line per step, grouped by phase, at most 100 columns. */
import { barriersPerToken } from './analysis.js';
import { type StepBody, type StepRun, stepRun, type TransferTarget, type WeightRef } from './steps.js';
import type { ExecutionPlan } from './types.js';

const COLUMNS = 100;
const PART_WIDTH = 10;
const OP_WIDTH = 13;
/** Where continued lines begin. */
const INDENT = 2 + PART_WIDTH + OP_WIDTH + 2;

/** The text of a plan: a summary, then every phase with its steps: transfers, parallel ones, serial ones. Ends with a newline. */
export function formatPlan(plan: ExecutionPlan): string {
  const lines = [...summary(plan)];
  const done = residualNotes(plan);
  let phase = -1;
  let part: StepRun | undefined;
  for (const step of plan.steps) {
    if (step.phase !== phase) {
      lines.push('', `phase ${step.phase}${done.get(step.phase) ?? ''}`);
      part = undefined;
    }
    const runs = stepRun(step);
    const title = runs === part ? '' : runs;
    [phase, part] = [step.phase, runs];
    lines.push(...wrap(`  ${title.padEnd(PART_WIDTH)}${step.op.padEnd(OP_WIDTH)}${describe(step)}`));
  }
  return `${lines.join('\n')}\n`;
}

function* summary(plan: ExecutionPlan): Generator<string> {
  const { config, options, buffers, caches, steps, phaseCount } = plan;
  const floats = buffers.reduce((sum, { length }) => sum + length, 0);
  yield* wrap(`plan of ${config.name}: ${config.combineStyle}, transfers ${options.transfers}`);
  yield `delays: dense ${config.denseDelay}, experts ${config.expertDelay} layers`;
  yield `${steps.length} steps in ${phaseCount} phases, ${barriersPerToken(plan)} barriers a token`;
  yield `${buffers.length} buffers of ${floats} f32, ${caches.length} KV caches`;
}

/** Which residual a phase completes, by phase. */
function residualNotes({ residuals }: ExecutionPlan): Map<number, string> {
  return new Map(
    residuals.map(({ layer, buffer, phase }) => [phase, `  (${buffer} = residual after layer ${layer})`]),
  );
}

const DESCRIBE: { [Op in StepBody['op']]: (step: Extract<StepBody, { op: Op }>) => string } = {
  embed: ({ out, matrix, scale }) =>
    `${out} = ${matrix.tensor}[token]${scale === 1 ? '' : ` * ${short(scale)}`}`,
  call: ({ target, trigger }) => `${targetName(target)}, triggered by ${trigger}`,
  sync: ({ target }) => targetName(target),
  rmsNorm: ({ input, weight, groupSize, out }) =>
    `${out} = norm(${input})${weight ? ` * ${weight.tensor}` : ''}, groups of ${groupSize}`,
  matvec: ({ input, outs }) => {
    const biases = outs.flatMap(({ bias }) => bias ?? []);
    const names = outs.map(({ out }) => out).join(', ');
    const matrices = common(outs.map(({ matrix }) => matrix));
    return `${names} = ${matrices} x ${input}${biases.length ? ` + ${common(biases)}` : ''}`;
  },
  plainMatvec: ({ input, weight, out }) => `${out} = ${weight.tensor} x ${input}`,
  rope: ({ buffer, headDim, rope }) =>
    `${buffer}, heads of ${headDim}, theta ${rope.theta}, ${rope.rotaryDim} dims`,
  append: ({ cache, k, v }) => `cache ${cache} += ${k}, ${v}`,
  attend: ({ cache, q, out, heads, kvHeads, headDim, window }) =>
    `${out} = attend(${q}, cache ${cache}), heads ${heads}:${kvHeads} x ${headDim}${window ? `, window ${window}` : ''}`,
  glu: ({ gate, up, activation, out }) => `${out} = ${activation}(${gate}) * ${up}`,
  route: ({ logits, topK, normalize, out }) =>
    `${out} = top ${topK} of ${logits}, softmax over ${normalize ? 'the chosen' : 'all'}`,
  expertsUp: ({ layer, input, routing, dim, hidden }) =>
    `${hidden} = gated experts of layer ${layer} (${routing}, width ${dim}) of ${input}`,
  expertsDown: ({ layer, hidden, routing, out }) =>
    `${out} = down of experts of layer ${layer} (${routing}) of ${hidden}`,
  sum: ({ terms, coefficients, out }) =>
    `${out} = ${terms.map((term, i) => (coefficients[i] === 1 ? term : `${short(coefficients[i]!)} ${term}`)).join(' + ')}`,
  clamp: ({ buffer, limit }) => `${buffer}, to ±${short(limit)}`,
  softcap: ({ buffer, cap }) => `${buffer}, cap ${short(cap)}`,
};

function describe(step: StepBody): string {
  return (DESCRIBE[step.op] as (step: StepBody) => string)(step);
}

const short = (value: number) => String(Number(value.toPrecision(6)));

function targetName(target: TransferTarget): string {
  return target.kind === 'stream'
    ? target.stream
    : `experts of layer ${target.layer} chosen by ${target.routing}`;
}

/** `layers.0.attn.{q_proj,k_proj}.weight`: names that differ in one component, written once. */
function common(weights: readonly WeightRef[]): string {
  const names = weights.map(({ tensor }) => tensor.split('.'));
  const [first] = names;
  if (!first || names.length === 1) return names[0]?.join('.') ?? '';
  const part = (index: number) => {
    const values = [...new Set(names.map((name) => name[index]))];
    return values.length === 1 ? values[0] : `{${values.join(',')}}`;
  };
  return first.map((_, index) => part(index)).join('.');
}

/** Breaks a line at spaces so that it fits; continuations are indented. */
function wrap(line: string): string[] {
  if (line.length <= COLUMNS) return [line];
  const at = line.lastIndexOf(' ', COLUMNS);
  const cut = at > INDENT + 2 ? at : COLUMNS;
  return [line.slice(0, cut).trimEnd(), ...wrap(`${' '.repeat(INDENT)}${line.slice(cut).trimStart()}`)];
}
