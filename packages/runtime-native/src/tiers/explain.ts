/** `--explain`: the choice of tiers and its result, as lines of text. */
import { fileText, memoryText, rateText } from '#cli-kit/bytes.js';
import { plural } from '#cli-kit/text.js';
import type { NativeStats } from '../engine.js';
import type { TierChoice } from './choose.js';
import { reserve } from './configure.js';

/** Before a run: the estimate, the rule that chose, and the prediction. */
export function explainChoice(choice: TierChoice): string[] {
  const { budget, budgetReason, plan, reason, weights } = choice;
  if (!plan || budget === undefined) return [`weights     ${weights} (${reason})`];
  const { memory } = plan;
  const parts = Object.entries(memory).filter(([, bytes]) => bytes > 0);
  const percent = ((100 * reserve(budget)) / budget).toFixed(0);
  return [
    `memory      ${memoryText(budget)} (${budgetReason})`,
    `for         ${parts.map(([name, bytes]) => `${name} ${memoryText(bytes)}`).join(', ')}`,
    `kept free   ${memoryText(reserve(budget))} (${percent} %), for huge pages, allocators and embedding rows`,
    `rule        ${reason}`,
    ...(weights === 'direct' ? directLines(choice) : []),
  ];
}

function directLines({ plan, io, bandwidths, prediction }: TierChoice): string[] {
  const { expertSlots, streamSlots, placement, transfers, mode, maxBatch } = plan!;
  const { streams } = placement;
  const { memory, disk } = bandwidths!;
  const { compute, io: fetching, interference, tokensPerSecond, gain } = prediction!;
  const fetched = [
    ...(expertSlots ? [`experts, ${expertSlots} in memory`] : []),
    ...(streams.size ? [`${plural(streams.size, 'stream')}, ${streamSlots} in memory`] : []),
  ];
  return [
    `offloaded   ${fetched.join('; ')}`,
    `pipeline    ${transfers}, ${mode}; up to ${plural(maxBatch, 'token')} of a prompt at once`,
    `reads       blocks of ${memoryText(io!.block)}, queue depth ${io!.depth}, ${io!.backend} backend, ${io!.mode} mode`,
    `measured    memory ${rateText(memory)}, disk ${rateText(disk)}`,
    `predicted   C ${ms(compute)}, IO ${ms(fetching)} a token, interference ${(100 * interference).toFixed(0)} %: ` +
      `${tokensPerSecond.toFixed(1)} tokens/s, ${gain.toFixed(2)} times the speed of waiting for each read`,
  ];
}

/** What a run reached. */
export interface Reached {
  /** 0 = nothing was generated. */
  readonly tokensPerSecond: number;
  readonly generatedTokens: number;
}

/** After a run: predicted against measured, and the KV cache's traffic to disk. */
export function explainRun(native: NativeStats, run: Reached): string[] {
  const fetched = native.choice.weights === 'direct';
  return [...(fetched ? fetchLines(native, run) : []), ...cacheLines(native)];
}

function fetchLines({ choice, tiers, threads }: NativeStats, run: Reached): string[] {
  const { tokensPerSecond, generatedTokens } = run;
  const { prediction } = choice;
  const called = tiers.hits + tiers.predicted + tiers.misses;
  const share = (count: number) => `${((100 * count) / called).toFixed(1)} %`;
  const reached = tokensPerSecond / prediction!.tokensPerSecond;
  const way = tiers.direct ? 'O_DIRECT' : 'buffered';
  return [
    `disk        ${fileText(tiers.bytesRead)} at ${rateText(tiers.bytesRead / tiers.busySeconds)} (${way}, ${tiers.uring ? 'io_uring' : 'threads'}${tiers.reason && `; ${tiers.reason}`})`,
    ...(called
      ? [
          `experts     ${share(tiers.hits)} in memory, ${share(tiers.predicted)} read ahead by prediction, ${share(tiers.misses)} missed`,
        ]
      : []),
    `stalled     ${tiers.stallSeconds.toFixed(3)} s over ${plural(threads, 'thread')}`,
    ...(tokensPerSecond > 0
      ? [
          `reached     ${tokensPerSecond.toFixed(1)} tokens/s, ${reached.toFixed(2)} of the prediction` +
            (reached < 1 ? warmUp(tiers, generatedTokens) : ''),
        ]
      : []),
  ];
}

/** A run of fewer tokens is mostly warm-up: all caches are empty at first. */
const FEW_TOKENS = 16;
/** From this share of the experts read, filling the empty expert cache counts as warm-up. */
const FILLING = 0.25;

/** Why a short run is slower than the prediction, which is for a long one. */
function warmUp({ slots, misses, ahead }: NativeStats['tiers'], tokens: number): string {
  const reads = misses + ahead;
  const filled = Math.min(slots, reads);
  if (filled > FILLING * reads) {
    const share = ((100 * filled) / reads).toFixed(0);
    return `; warm-up: ${share} % of the experts read filled the empty expert cache; a longer run is faster`;
  }
  return tokens < FEW_TOKENS ? `; warm-up: ${plural(tokens, 'token')} only; a longer run is faster` : '';
}

function cacheLines({ tiers, threads }: NativeStats): string[] {
  const { cacheWritten, cacheRead, cacheStallSeconds, cacheReason } = tiers;
  if (cacheWritten === 0) return [];
  const why = cacheReason && ` (${cacheReason})`;
  return [
    `KV cache    ${fileText(cacheWritten)} written to disk, ${fileText(cacheRead)} read back${why}`,
    `stalled     ${cacheStallSeconds.toFixed(3)} s over ${plural(threads, 'thread')} for it`,
  ];
}

const ms = (seconds: number) => `${(1000 * seconds).toFixed(2)} ms`;
