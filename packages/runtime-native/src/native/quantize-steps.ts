/** Where the int8 forms of activations are made. */
import { nativeAccess } from './access.js';
import type { BufferId, NativeOp, NativeStep } from './program.js';

/** What the tiled matrices of a step read: a buffer of `parts` equal pieces. */
interface TiledInput {
  readonly buffer: BufferId;
  readonly parts: number;
}

type StepOf<Op extends NativeOp> = Extract<NativeStep, { op: Op }>;
const whole = ({ input }: { readonly input: BufferId }): TiledInput => ({ buffer: input, parts: 1 });

const TILED_INPUT: { readonly [Op in NativeOp]?: (step: StepOf<Op>) => TiledInput } = {
  matvec: whole,
  gatedMatvec: whole,
  expertsUp: whole,
  expertsDown: ({ hidden, topK }) => ({ buffer: hidden, parts: topK }),
};

export interface QuantizedSteps {
  readonly steps: NativeStep[];
  /** `headFrom` of the result. */
  readonly headFrom: number;
}

/**
 * Puts a `quantize` in front of the first step whose tiled matrices read a value: one for each value, however many
 * read it. With `quantized` false the steps stay as they are.
 * @param lengths elements of each buffer, by id
 */
export function insertQuantize(
  steps: readonly NativeStep[],
  lengths: readonly number[],
  headFrom: number,
  quantized: boolean,
): QuantizedSteps {
  if (!quantized) return { steps: [...steps], headFrom };
  const result: NativeStep[] = [];
  const current = new Set<BufferId>();
  let head = headFrom;
  for (const [i, step] of steps.entries()) {
    const input = (TILED_INPUT[step.op] as ((step: NativeStep) => TiledInput) | undefined)?.(step);
    if (input && !current.has(input.buffer)) {
      const { buffer, parts } = input;
      result.push({ op: 'quantize', input: buffer, parts, partLength: lengths[buffer]! / parts });
      current.add(buffer);
    }
    // After the quantize: that of the head's input belongs to the steps before, with the norm that made it.
    if (i === headFrom) head = result.length;
    for (const name of nativeAccess(step, true).writes) {
      if (name.startsWith('b')) current.delete(Number(name.slice(1)));
    }
    result.push(step);
  }
  return { steps: result, headFrom: head };
}
