/** Rotation in GGUF: the order of rows for neighbouring pairs, and llama3 scaling as divisors of the frequencies. */
import { CflowError, type RopeConfig } from '@cflow/format';

/** Which elements of a head rotate. */
export interface Heads {
  readonly headDim: number;
  readonly rotaryDim: number;
}

/** Row of our tensor that stands at `row` of GGUF's: element 2i + j of a head is our element i + j · rotaryDim/2. */
export function ourRow({ headDim, rotaryDim }: Heads, row: number): number {
  const at = row % headDim;
  return at < rotaryDim ? row - at + (at >> 1) + (at & 1) * (rotaryDim / 2) : row;
}

/** The inverse: row of GGUF's tensor at which our `row` stands. */
export function ggufRow({ headDim, rotaryDim }: Heads, row: number): number {
  const at = row % headDim;
  const half = rotaryDim / 2;
  return at < rotaryDim ? row - at + 2 * (at % half) + (at >= half ? 1 : 0) : row;
}

type Llama3 = Extract<RopeConfig['scaling'], { type: 'llama3' }>;

/** What each frequency is divided by: 1 for short waves, `factor` for long ones, a blend between (f32 [rotaryDim / 2]). */
export function llama3Factors({ theta, rotaryDim }: RopeConfig, scaling: Llama3): Float32Array {
  const { factor, lowFreqFactor, highFreqFactor, originalContextLength } = scaling;
  return Float32Array.from({ length: rotaryDim / 2 }, (_, i) => {
    const wavelength = 2 * Math.PI * theta ** ((2 * i) / rotaryDim);
    if (wavelength < originalContextLength / highFreqFactor) return 1;
    if (wavelength > originalContextLength / lowFreqFactor) return factor;
    const smooth = (originalContextLength / wavelength - lowFreqFactor) / (highFreqFactor - lowFreqFactor);
    return 1 / ((1 - smooth) / factor + smooth);
  });
}

/** Divisors do not say the four numbers that made them; released models differ in the factor alone. */
const RELEASED = { lowFreqFactor: 1, highFreqFactor: 4 } as const;
/** The released one first, then powers of two. */
const CONTEXTS = [8_192, ...Array.from({ length: 21 }, (_, i) => 2 ** i)];
const TOLERANCE = 1e-5;

/** @throws CflowError UNSUPPORTED for divisors that llama3 scaling does not give */
export function recogniseLlama3(rope: RopeConfig, factors: Float32Array, file: string): Llama3 | undefined {
  if (factors.every((factor) => factor === 1)) return undefined;
  const factor = factors.reduce((most, each) => Math.max(most, each), 1);
  for (const originalContextLength of CONTEXTS) {
    const scaling: Llama3 = { type: 'llama3', factor, ...RELEASED, originalContextLength };
    const expected = llama3Factors(rope, scaling);
    const same = expected.length === factors.length;
    if (same && expected.every((each, i) => Math.abs(each / factors[i]! - 1) < TOLERANCE)) return scaling;
  }
  throw new CflowError('UNSUPPORTED', 'divisors of the rotation that are not those of a Llama 3', {
    file,
    field: 'rope_freqs.weight',
    remedy: 'convert the checkpoint itself with cflow-convert',
  });
}
