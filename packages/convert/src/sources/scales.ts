/** Scales of block-quantized FP8 tensors: which tensor they belong to, and how they lie. */
import type { Quantization } from './quantization.js';
import type { SafetensorsEntry } from './safetensors.js';
import { DECODERS, type SafetensorsDtype } from './safetensors-dtype.js';

const SUFFIX = '_scale_inv';

/** Name of the scales of a quantized tensor, beside it. */
export const scalesName = (name: string): string => `${name}${SUFFIX}`;

/** The tensor that scales belong to; undefined for a tensor that is no scales. */
export function scalesOwner(name: string): string | undefined {
  return name.endsWith(SUFFIX) ? name.slice(0, -SUFFIX.length) : undefined;
}

/** Whether values of a dtype mean anything only with scales. */
export function isQuantized(dtype: SafetensorsDtype | undefined): boolean {
  return dtype?.startsWith('F8_') ?? false;
}

/** Decoders of the dtypes that scales have: plain floats, and UE8M0, which is a power of two alone (255 is NaN). */
export const SCALE_DECODERS: Partial<Record<SafetensorsDtype, (bytes: Uint8Array) => Float32Array>> = {
  F32: DECODERS.F32!,
  BF16: DECODERS.BF16!,
  F16: DECODERS.F16!,
  F8_E8M0: (bytes) => Float32Array.from(bytes, (byte) => (byte === 255 ? Number.NaN : 2 ** (byte - 127))),
};

/** How the scales of one stored tensor lie. */
export interface ScaleShape {
  /** Rows and columns of the stored tensor that share a scale; blocks begin anew with each expert. */
  readonly block: readonly [number, number];
  /** Shapes that the scales may have: one a block, or one a tensor. */
  readonly shapes: readonly (readonly number[])[];
}

/** Rows and columns that share a scale where config.json does not say it; the default of transformers. */
const DEFAULT_BLOCK = [128, 128] as const;

/** The scales that a stored tensor of `shape` must have, in its stored orientation. */
export function scaleShape(shape: readonly number[], quantization: Quantization | undefined): ScaleShape {
  const [rows = 1, cols = 1] = shape.length < 2 ? [1, shape[0] ?? 1] : shape.slice(-2);
  const experts = shape.slice(0, -2);
  const block = quantization ? quantization.block : DEFAULT_BLOCK;
  if (block === null) {
    const each = [[...experts, 1, 1], [...experts, 1], experts];
    return { block: [rows, cols], shapes: each };
  }
  return { block, shapes: [[...experts, Math.ceil(rows / block[0]), Math.ceil(cols / block[1])]] };
}

/** What is wrong with stored scales; undefined if nothing is. */
export function scaleProblem(
  { dtype, shape }: Pick<SafetensorsEntry, 'dtype' | 'shape'>,
  { block, shapes }: ScaleShape,
): string | undefined {
  if (!SCALE_DECODERS[dtype]) {
    return `have the dtype ${dtype}, not ${Object.keys(SCALE_DECODERS).join(', ')}`;
  }
  if (shapes.some((expected) => String(expected) === String(shape))) return undefined;
  return `are [${shape}], not [${shapes[0]}] for blocks of ${block[0]} × ${block[1]}`;
}
