/** Approach A of the report (§6.3.1): a layer begins before the one below it has ended. */
import { CflowError, type CombineStyle, type ExecutionPlan } from '@cflow/format';
import type { Interpreter } from '@cflow/runtime-native';

/** What a layer gives is added to the residual, and nothing else becomes of it. */
const ADDITIVE: readonly CombineStyle[] = ['sequential', 'delayedSum', 'asyncExperts'];

/** @throws CflowError UNSUPPORTED where a residual is not the one below it plus what the layer gives */
export function requireAdditive({ config: { combineStyle }, steps, residuals }: ExecutionPlan): void {
  const outs = new Set(residuals.map(({ buffer }) => buffer));
  const scaled = steps.some(
    (step) =>
      step.op === 'sum' && outs.has(step.out) && (step.scale || step.coefficients.some((c) => c !== 1)),
  );
  if (ADDITIVE.includes(combineStyle) && !scaled) return;
  throw new CflowError('UNSUPPORTED', `${combineStyle} has no residual that layers add to`, {
    field: 'combineStyle',
    value: combineStyle,
    remedy: `a model of ${ADDITIVE.join(', ')}`,
  });
}

const norm = (x: Float32Array) => Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));

/**
 * Watches the residuals of an interpreter, and lets layers begin early.
 *
 * Layer l + 1 begins with x, the input of layer l, if d, what l gives, turns out to be less than `threshold` times x;
 * d is added to its output. Then it is the turn of l + 2, whose true input is known by then. A layer whose predecessor
 * gave more is computed anew from its true input.
 */
export class Speculation {
  /** Of the last token, by layer: |d| / |x|. */
  readonly ratios: number[] = [];
  /** Of all tokens: layers that began early and stood, and those that were computed anew. */
  accepted = 0;
  rejected = 0;

  readonly #interpreter: Interpreter;
  readonly #threshold: number;
  readonly #embedded: { readonly buffer: string; readonly step: number };
  #input = new Float32Array();
  /** What the layer below the one that runs gave, if that one did not wait for it. */
  #missing: Float32Array | undefined;

  /** @param threshold 0: all layers wait; Infinity: none does that can begin early */
  constructor(interpreter: Interpreter, threshold: number) {
    this.#interpreter = interpreter;
    this.#threshold = threshold;
    const { steps } = interpreter.plan;
    const embed = steps.find((step) => step.op === 'embed')!;
    this.#embedded = { buffer: embed.out, step: steps.indexOf(embed) };
  }

  /** For `Interpreter.step`. */
  readonly onStep = (step: number): void => {
    if (step === this.#embedded.step) this.#begin();
    for (const [layer, point] of this.#interpreter.plan.residuals.entries()) {
      if (point.step === step) this.#end(layer, this.#interpreter.buffer(point.buffer));
    }
  };

  #begin(): void {
    this.#input = this.#interpreter.buffer(this.#embedded.buffer).slice();
    this.#missing = undefined;
    this.ratios.length = 0;
  }

  #end(layer: number, live: Float32Array): void {
    const early = this.#missing;
    for (const [i, value] of early?.entries() ?? []) live[i]! += value;
    const output = live.slice();
    const given = output.map((value, i) => value - this.#input[i]!);
    const ratio = norm(given) / norm(this.#input);
    this.ratios.push(ratio);
    this.#missing = undefined;
    const canBeEarly = !early && layer + 1 < this.#interpreter.plan.residuals.length;
    if (canBeEarly && ratio < this.#threshold) {
      live.set(this.#input);
      this.#missing = given;
      this.accepted++;
    } else if (canBeEarly) this.rejected++;
    this.#input = output;
  }
}
