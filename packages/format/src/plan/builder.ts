/** Collects the buffers and steps of one token in program order. */
import type { ModelConfig } from '../model/config.js';
import type { StepBody } from './steps.js';
import type { BufferSpec, CacheSpec } from './types.js';

/** A step in program order. */
export interface BuiltStep {
  readonly body: StepBody;
  /** Index of an earlier step whose phase this one does not precede. */
  readonly notBefore: number | undefined;
}

/** What is collected while a plan is built; steps are referred to by their index in `steps`. */
export class PlanBuilder {
  readonly buffers = new Map<string, BufferSpec>();
  readonly caches: CacheSpec[] = [];
  readonly steps: BuiltStep[] = [];
  /** First step of each effective layer. */
  readonly slots: number[] = [];
  /** Routings of later layers, made ahead; `step` is the one that completes them. */
  readonly predictions: { readonly layer: number; readonly routing: string; readonly step: number }[] = [];
  readonly residuals: { readonly layer: number; readonly buffer: string; readonly step: number }[] = [];
  /** First step that only the logits need. */
  head = 0;

  constructor(
    readonly config: ModelConfig,
    /** Whether the experts of the next layer are predicted. */
    readonly predicts = false,
  ) {}

  /** Declares a buffer of `length` f32. Layers of another geometry get another buffer, named with its length. */
  buffer(name: string, length: number = this.config.hiddenDim): string {
    const known = this.buffers.get(name);
    if (known && known.length !== length) return this.buffer(`${name}:${length}`, length);
    if (!known) this.buffers.set(name, { name, length });
    return name;
  }

  /** Adds a step; returns its index. */
  emit(body: StepBody, notBefore?: number): number {
    return this.steps.push({ body, notBefore }) - 1;
  }

  /** The residual after `layer` is complete in `buffer` once the last step so far has run. */
  completeResidual(layer: number, buffer: string): void {
    this.residuals.push({ layer, buffer, step: this.steps.length - 1 });
  }
}
