/** What each native step reads and writes, and which steps all threads share: what the schedule is made from. */
import type { NativeOp, NativeStep } from './program.js';

/** Names of resources: `b<i>` a buffer, `q<i>` its int8 form, `c<i>` a key/value cache, `e<i>` the experts of a bank. */
export interface StepAccess {
  readonly reads: readonly string[];
  readonly writes: readonly string[];
}

const f32 = (buffer: number) => `b${buffer}`;
const int8 = (buffer: number) => `q${buffer}`;
const kv = (cache: number) => `c${cache}`;
const experts = (bank: number) => `e${bank}`;

type StepOf<Op extends NativeOp> = Extract<NativeStep, { op: Op }>;
/** `tiled` names what tiled matrices read of a buffer: its f32 or its int8 form. */
type AccessOf<Op extends NativeOp> = (step: StepOf<Op>, tiled: (buffer: number) => string) => StepAccess;

const ACCESS: { readonly [Op in NativeOp]: AccessOf<Op> } = {
  embed: ({ out }) => ({ reads: [], writes: [f32(out)] }),
  rmsNorm: ({ input, out }) => ({ reads: [f32(input)], writes: [f32(out)] }),
  quantize: ({ input }) => ({ reads: [f32(input)], writes: [int8(input)] }),
  matvec: ({ input, outs }, tiled) => ({ reads: [tiled(input)], writes: outs.map(({ out }) => f32(out)) }),
  gatedMatvec: ({ input, out }, tiled) => ({ reads: [tiled(input)], writes: [f32(out)] }),
  plainMatvec: ({ input, out }) => ({ reads: [f32(input)], writes: [f32(out)] }),
  rope: ({ buffer }) => ({ reads: [f32(buffer)], writes: [f32(buffer)] }),
  append: ({ cache, k, v }) => ({ reads: [f32(k), f32(v)], writes: [kv(cache)] }),
  attend: ({ cache, q, out }) => ({ reads: [kv(cache), f32(q)], writes: [f32(out)] }),
  glu: ({ gate, up, out }) => ({ reads: [f32(gate), f32(up)], writes: [f32(out)] }),
  route: ({ logits, out }) => ({ reads: [f32(logits)], writes: [f32(out)] }),
  expertsUp: ({ input, routing, hidden, bank }, tiled) => ({
    reads: [tiled(input), f32(routing), experts(bank)],
    writes: [f32(hidden)],
  }),
  expertsDown: ({ hidden, routing, out, bank }, tiled) => ({
    reads: [tiled(hidden), f32(routing), experts(bank)],
    writes: [f32(out)],
  }),
  sum: ({ terms, out }) => ({ reads: terms.map(f32), writes: [f32(out)] }),
  copy: ({ input, out }) => ({ reads: [f32(input)], writes: [f32(out)] }),
  softcap: ({ buffer }) => ({ reads: [f32(buffer)], writes: [f32(buffer)] }),
  callExperts: ({ bank, routing }) => ({ reads: [f32(routing)], writes: [experts(bank)] }),
  syncExperts: ({ bank }) => ({ reads: [], writes: [experts(bank)] }),
  // Placed by the uses of what was fetched, once the stages are known.
  releaseExperts: () => ({ reads: [], writes: [] }),
  callStream: () => ({ reads: [], writes: [] }),
  syncStream: () => ({ reads: [], writes: [] }),
  releaseStream: () => ({ reads: [], writes: [] }),
};

/** @param quantized whether tiled matrices read the int8 form of their input */
export function nativeAccess(step: NativeStep, quantized: boolean): StepAccess {
  return (ACCESS[step.op] as AccessOf<NativeOp>)(step, quantized ? int8 : f32);
}

/** A plain matrix of fewer bytes is not worth sharing: one thread reads it from its cache while the others wait. */
const SHARED_PLAIN_BYTES = 64 * 1024;

const TRANSFERS: ReadonlySet<NativeOp> = new Set([
  'callExperts',
  'syncExperts',
  'releaseExperts',
  'callStream',
  'syncStream',
  'releaseStream',
]);

const SHARED: ReadonlySet<NativeOp> = new Set([
  'matvec',
  'gatedMatvec',
  'attend',
  'expertsUp',
  'expertsDown',
]);

/** Split over the threads; run by one of them; or run once a batch, behind the serial ones. */
export type StepKind = 'parallel' | 'serial' | 'transfers';

export function stepKind(step: NativeStep): StepKind {
  if (TRANSFERS.has(step.op)) return 'transfers';
  if (step.op === 'plainMatvec') {
    return 4 * step.rows * step.cols >= SHARED_PLAIN_BYTES ? 'parallel' : 'serial';
  }
  return SHARED.has(step.op) ? 'parallel' : 'serial';
}
