/** The native quantizer: what packages/format/src/tiles/tile.ts defines, at the speed of the kernels. */
import { DTYPES, type Dtype, type StripeId, stripeBytes, writeStripeHeaders } from '@cflow/format/stripes';
import { loadAddon } from './addon.js';

/** Element types of checkpoints that the kernels read, little endian, as safetensors calls them. */
export const NATIVE_INPUTS = ['BF16', 'F16', 'F32'] as const;
/** dtype of a checkpoint that is quantized without a detour over f32. */
export type NativeInput = (typeof NATIVE_INPUTS)[number];

/** An output stripe of a matrix, to become tiles. */
export interface NativeStripe {
  /** Raw bytes of [rows, cols] weights, row-major. */
  readonly weights: Uint8Array;
  readonly input: NativeInput;
  /** 1 to 128. */
  readonly rows: number;
  readonly cols: number;
  readonly dtype: Dtype;
  readonly id: StripeId;
  /** q4_0 only, as in QuantizeOptions. */
  readonly scaleSearch: boolean;
  /** Stores 0 for NaN and infinities. */
  readonly zeroNonfinite: boolean;
}

/**
 * Fills `out`, of `stripeBytes` bytes, with the same bytes as `quantizeStripe` of packages/format.
 * Returns false, and leaves `out` undefined, if a weight is not finite or too large for the dtype: ask `quantizeStripe`
 * which one.
 * @throws TypeError for sizes that do not fit each other
 */
export type NativeQuantizer = (stripe: NativeStripe, out: Uint8Array) => boolean;

interface QuantizerExports {
  /** Arguments as in native/addon/quantize.cpp. */
  quantizeStripe?(...args: (Uint8Array | string | number | boolean)[]): boolean;
}

/** The quantizer of the addon; undefined where there is no addon. Usable in any thread. */
export function nativeQuantizer(): NativeQuantizer | undefined {
  const addon = loadAddon() as QuantizerExports | undefined;
  const quantize = addon?.quantizeStripe;
  if (!quantize) return undefined;
  return ({ weights, input, rows, cols, dtype, id, scaleSearch, zeroNonfinite }, out) => {
    const tiles = out.subarray(0, stripeBytes(dtype, rows, cols));
    const { id: dtypeId } = DTYPES[dtype];
    if (!quantize(weights, input, rows, cols, dtypeId, scaleSearch, zeroNonfinite, tiles)) return false;
    writeStripeHeaders(dtype, tiles, rows, cols, id);
    return true;
  };
}
