/** Approach B of the report (§6.3.2): what a router sees, and what its experts then give. */
import type { Interpreter } from '@cflow/runtime-native';
import { linearR2, type Samples } from './linear.js';

interface Point {
  readonly layer: number;
  readonly phase: number;
  readonly buffer: string;
}

/** Router logits and outputs of experts, by layer. */
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
      step.op === 'experts' ? [{ layer: step.layer, phase: step.phase, buffer: step.out }] : [],
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

  /** By layer that routes; fitted on the first `share` of the tokens, judged on the others. */
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
