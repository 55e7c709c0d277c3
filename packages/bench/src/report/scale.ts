/** The axis of figures in charts. */
import type { Metric } from '../harness/result.js';

export type Range = Pick<Metric, 'min' | 'max'>;

/** Largest over smallest figure beyond which a linear axis hides the smallest. */
const WIDE = 50;

export function rangeOf(metrics: readonly Range[]): Range {
  return {
    min: Math.min(...metrics.map(({ min }) => min)),
    max: Math.max(...metrics.map(({ max }) => max)),
  };
}

/**
 * From 0; logarithmic from a power of ten where a chart would otherwise show its largest figure alone.
 * @param fixed also to a round end, where more than one chart has it
 */
export function scaleOf({ min, max }: Range, fixed = false) {
  // Below the least, so that its bar is seen.
  const floor = 10 ** (Math.ceil(Math.log10(min)) - 1);
  if (min > 0 && max / min > WIDE) {
    return {
      type: 'log',
      min: floor,
      startValue: floor,
      ...(fixed && { max: 10 ** Math.ceil(Math.log10(max)) }),
    };
  }
  return { type: 'value', ...(fixed && { min: 0 - roundUp(-min), max: roundUp(max) }) };
}

/** To one digit that counts; nothing below 0. */
function roundUp(value: number): number {
  if (value <= 0) return 0;
  const step = 10 ** Math.floor(Math.log10(value));
  return Math.ceil(value / step) * step;
}
