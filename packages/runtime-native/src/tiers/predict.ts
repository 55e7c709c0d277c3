/** Predicts the speed of a tier plan: the overlap model of the report (§5.14.3), with its interference term. */
import type { Bandwidths, TierPlan } from './configure.js';
import { type ModelSizes, sum } from './estimate.js';

/** Seconds a token, and the resulting speed. */
export interface Prediction {
  /** Reading weights from memory and computing with them (C). */
  readonly compute: number;
  /** Reading offloaded weights from disk (IO). */
  readonly io: number;
  /** Share by which disk reads slow computing: the memory bandwidth that they take. */
  readonly interference: number;
  readonly tokensPerSecond: number;
  /** (C + IO) / max(C, IO_eff): speed over waiting for each read. */
  readonly gain: number;
}

/** Share of the read bandwidth that decode reaches (docs/benchmarks.md). */
const DECODE_EFFICIENCY = 0.85;
/** Share of the missing experts that prediction reads in time, measured on a small trained model and on random ones. */
const PREDICTED_SHARE = 0.4;

export function predict(sizes: ModelSizes, plan: TierPlan, bandwidths: Bandwidths): Prediction {
  const { experts, streams } = sizes;
  const expertBytes = experts ? experts.perToken * experts.bytes : 0;
  const streamBytes = sum(streams.map(({ bytes }) => bytes));
  const rate = bandwidths.memory * DECODE_EFFICIENCY;
  const compute = (streamBytes + expertBytes) / rate;
  const fetched = fetchedBytes(sizes, plan, expertBytes);
  const io = fetched / bandwidths.disk;
  const interference = io > 0 ? Math.min(1, bandwidths.disk / bandwidths.memory) : 0;
  const seconds = tokenSeconds(sizes, plan, { compute, io, interference, expertCompute: expertBytes / rate });
  return { compute, io, interference, tokensPerSecond: 1 / seconds, gain: (compute + io) / seconds };
}

/** Bytes that a token reads from disk: offloaded streams, and the experts missed if routing were uniform. */
function fetchedBytes({ streams, experts }: ModelSizes, plan: TierPlan, expertBytes: number): number {
  const { placement, expertSlots } = plan;
  const fetched = sum(streams.filter(({ name }) => placement.streams.has(name)).map(({ bytes }) => bytes));
  if (!experts || !placement.experts) return fetched;
  return fetched + expertBytes * Math.max(0, 1 - expertSlots / experts.count);
}

interface Parts {
  readonly compute: number;
  readonly io: number;
  readonly interference: number;
  readonly expertCompute: number;
}

function tokenSeconds({ experts }: ModelSizes, { transfers, placement }: TierPlan, parts: Parts): number {
  const { compute, io, interference, expertCompute } = parts;
  if (transfers === 'stall') return compute + io;
  const together = Math.max(compute * (1 + interference), io);
  const delayed = experts && experts.layersInFlight > 1;
  if (!placement.experts || delayed) return together;
  // Without a delay, a read overlaps only the other experts of its layer, unless it was predicted.
  const within = compute - expertCompute + Math.max(expertCompute, io);
  const share = transfers === 'predict' ? PREDICTED_SHARE : 0;
  return share * together + (1 - share) * within;
}
