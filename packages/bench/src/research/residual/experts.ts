/** Approach B of the report (§6.3.2): router logits as predictors of expert outputs. */
import type { Interpreter } from '@cflow/runtime-native/internal/reference/interpreter.js';

interface Point {
  readonly layer: number;
  readonly phase: number;
  readonly buffer: string;
}

/** Collects router logits and expert outputs, by layer. */
export class RouterRecord {
  readonly #interpreter: Interpreter;
  readonly #logits: readonly Point[];
  readonly #outputs: readonly Point[];
  readonly #samples = new Map<number, { features: Float32Array[]; targets: Float32Array[] }>();

  constructor(interpreter: Interpreter, samples?: RouterRecord) {
    this.#interpreter = interpreter;
    const { steps, config } = interpreter.plan;
    const routed = config.layers.flatMap(({ experts }, layer) => (experts ? [layer] : []));
    const routes = steps.filter((step) => step.op === 'route');
    this.#logits = routes.map(({ phase, logits }, i) => ({ layer: routed[i]!, phase, buffer: logits }));
    this.#outputs = steps.flatMap((step) =>
      step.op === 'expertsDown' ? [{ layer: step.layer, phase: step.phase, buffer: step.out }] : [],
    );
    if (samples) this.#samples = samples.#samples;
  }

  /** For `Interpreter.step`. */
  readonly onPhase = (phase: number): void => {
    for (const { layer, buffer } of this.#logits.filter((point) => point.phase === phase))
      this.#of(layer).features.push(this.#interpreter.buffer(buffer).slice());
    for (const { layer, buffer } of this.#outputs.filter((point) => point.phase === phase))
      this.#of(layer).targets.push(this.#interpreter.buffer(buffer).slice());
  };

  #of(layer: number) {
    const known = this.#samples.get(layer) ?? { features: [], targets: [] };
    this.#samples.set(layer, known);
    return known;
  }

  /** R² by layer with experts; fitted on the first `share` of the tokens, tested on the others. */
  r2(share: number): { layer: number; r2: number }[] {
    return [...this.#samples].map(([layer, { features, targets }]) => {
      const cut = Math.floor(share * features.length);
      const part = (from: number, to?: number): Samples => ({
        features: features.slice(from, to),
        targets: targets.slice(from, to),
      });
      return { layer, r2: linearR2(part(0, cut), part(cut)) };
    });
  }
}

/** Least squares: variance explained by a linear map of few features. */

/** Samples, concatenated. */
export interface Samples {
  /** Features per sample. */
  readonly features: readonly Float32Array[];
  /** Targets of each sample, all of one length. */
  readonly targets: readonly Float32Array[];
}

/** Ridge term for dependent features, relative to the largest diagonal element. */
const RIDGE = 1e-9;

/**
 * R² on held-out samples: 1 - Σ|y - ŷ|² / Σ|y - mean|², with the mean of the fitted samples.
 * The map has an intercept. 1 = all explained, 0 = no better than the mean.
 */
export function linearR2(fitted: Samples, held: Samples): number {
  const map = fit(fitted);
  const mean = meanOf(fitted.targets);
  let left = 0;
  let total = 0;
  for (const [i, target] of held.targets.entries()) {
    const guess = predict(map, held.features[i]!);
    for (const [d, y] of target.entries()) {
      left += (y - guess[d]!) ** 2;
      total += (y - mean[d]!) ** 2;
    }
  }
  return 1 - left / total;
}

/** [features + 1][targets], the last row being the intercept. */
type LinearMap = readonly Float64Array[];

export function fit({ features, targets }: Samples): LinearMap {
  const n = features[0]!.length + 1;
  const dim = targets[0]!.length;
  const square = Array.from({ length: n }, () => new Float64Array(n));
  const right = Array.from({ length: n }, () => new Float64Array(dim));
  for (const [i, own] of features.entries()) {
    const x = [...own, 1];
    for (let a = 0; a < n; a++) {
      for (let b = 0; b < n; b++) square[a]![b]! += x[a]! * x[b]!;
      for (let d = 0; d < dim; d++) right[a]![d]! += x[a]! * targets[i]![d]!;
    }
  }
  const most = Math.max(...square.map((row, a) => row[a]!));
  for (let a = 0; a < n; a++) square[a]![a]! += RIDGE * most;
  return solve(square, right);
}

export function predict(map: LinearMap, features: Float32Array): Float64Array {
  const result = Float64Array.from(map.at(-1)!);
  for (const [a, x] of features.entries()) {
    for (let d = 0; d < result.length; d++) result[d]! += x * map[a]![d]!;
  }
  return result;
}

/** Gaussian elimination in place; the matrix is positive definite, so diagonal pivots suffice. */
function solve(square: Float64Array[], right: Float64Array[]): Float64Array[] {
  const n = square.length;
  for (let pivot = 0; pivot < n; pivot++) {
    for (let row = 0; row < n; row++) {
      if (row === pivot) continue;
      const factor = square[row]![pivot]! / square[pivot]![pivot]!;
      if (factor === 0) continue;
      for (let c = pivot; c < n; c++) square[row]![c]! -= factor * square[pivot]![c]!;
      for (let d = 0; d < right[row]!.length; d++) right[row]![d]! -= factor * right[pivot]![d]!;
    }
  }
  return right.map((row, a) => row.map((value) => value / square[a]![a]!));
}

function meanOf(vectors: readonly Float32Array[]): Float64Array {
  const mean = new Float64Array(vectors[0]!.length);
  for (const vector of vectors) {
    for (const [d, y] of vector.entries()) mean[d]! += y / vectors.length;
  }
  return mean;
}
