/** Where the int8 forms of activations are made. */
import { type BufferId, type ProgramStep, programAccess, stepFields } from '@cflow/format';

/** What the tiled matrices of a step read: a buffer of `parts` equal pieces. */
interface TiledInput {
  readonly buffer: BufferId;
  readonly parts: number;
}

function tiledInput(step: ProgramStep): TiledInput | undefined {
  const values = step as unknown as Readonly<Record<string, number>>;
  for (const [name, kind] of stepFields(step.op, 'program')) {
    if (kind === 'tiledInput') return { buffer: values[name]!, parts: 1 };
    if (kind === 'tiledPieces') return { buffer: values[name]!, parts: values.topK! };
  }
  return undefined;
}

export interface QuantizedSteps {
  readonly steps: ProgramStep[];
  /** `headFrom` of the result. */
  readonly headFrom: number;
}

/**
 * Puts a `quantize` in front of the first step whose tiled matrices read a value: one for each value, however many
 * read it. With `quantized` false the steps stay as they are.
 * @param lengths elements of each buffer, by id
 */
export function insertQuantize(
  steps: readonly ProgramStep[],
  lengths: readonly number[],
  headFrom: number,
  quantized: boolean,
): QuantizedSteps {
  if (!quantized) return { steps: [...steps], headFrom };
  const result: ProgramStep[] = [];
  const current = new Set<BufferId>();
  let head = headFrom;
  for (const [i, step] of steps.entries()) {
    const input = tiledInput(step);
    if (input && !current.has(input.buffer)) {
      const { buffer, parts } = input;
      result.push({ op: 'quantize', input: buffer, parts, partLength: lengths[buffer]! / parts });
      current.add(buffer);
    }
    // After the quantize: that of the head's input belongs to the steps before, with the norm that made it.
    if (i === headFrom) head = result.length;
    for (const name of programAccess(step, true).writes) current.delete(Number(name));
    result.push(step);
  }
  return { steps: result, headFrom: head };
}
