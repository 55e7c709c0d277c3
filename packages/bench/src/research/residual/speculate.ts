/** Approach A of the report (§6.3.1): a layer starts before the one below has finished. */
import { CflowError, type CombineStyle, type ExecutionPlan } from '@cflow/format';
import type { Interpreter } from '@cflow/runtime-native/internal/reference/interpreter.js';

/** Combine styles in which the output of a layer is only added to the residual. */
const ADDITIVE: readonly CombineStyle[] = ['sequential', 'delayedSum', 'asyncExperts'];

/** @throws CflowError UNSUPPORTED unless each layer adds its output to the residual */
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
 * Observes the residuals of an interpreter, and starts layers early.
 *
 * Layer l + 1 starts with x, the input of layer l. If the output d of l is less than `threshold` times x, the result is
 * accepted and d added to it. Layer l + 2 then starts with its exact input. Otherwise layer l + 1 is recomputed from its
 * exact input.
 */
export class Speculation {
  /** Last token, by layer: |d| / |x|. */
  readonly ratios: number[] = [];
  /** All tokens: early layers accepted and recomputed. */
  accepted = 0;
  rejected = 0;

  readonly #interpreter: Interpreter;
  readonly #threshold: number;
  readonly #embedded: { readonly buffer: string; readonly step: number };
  #input = new Float32Array();
  /** Output of the layer below, if the current layer did not wait for it. */
  #missing: Float32Array | undefined;

  /** @param threshold 0: all layers wait; Infinity: all start early that can */
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
