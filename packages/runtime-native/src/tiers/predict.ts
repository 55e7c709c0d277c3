/** What a tier plan should reach: the overlap model of the report (§5.14.3), with its interference term. */
import type { Bandwidths, TierPlan } from './configure.js';
import { type ModelSizes, sum } from './estimate.js';

/** Seconds a token, and what they make. */
export interface Prediction {
  /** Reading weights from memory, and computing with them. */
  readonly compute: number;
  /** Fetching what is not in memory. */
  readonly io: number;
  /** Share by which fetching slows computing: the memory bandwidth that it takes. */
  readonly interference: number;
  readonly tokensPerSecond: number;
  /** (C + IO) / max(C, IO_eff): what the transfers gain over waiting for each. */
  readonly gain: number;
}

/** Of the read bandwidth, what decoding reaches (docs/benchmarks.md). */
const DECODE_EFFICIENCY = 0.85;
/** Share of the experts out of memory that a prediction names in time, as measured on a small trained model and on random ones. */
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

/** Bytes that a token fetches: its streams, and as many experts as chance finds out of memory. */
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
  // Without a delay a fetch runs beside the other experts of its layer alone, unless it was predicted.
  const within = compute - expertCompute + Math.max(expertCompute, io);
  const share = transfers === 'predict' ? PREDICTED_SHARE : 0;
  return share * together + (1 - share) * within;
}
