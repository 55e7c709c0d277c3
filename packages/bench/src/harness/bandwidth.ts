/** What the machine's memory gives to plain reads, which nothing that streams weights can exceed. */
import { runChild } from './child.js';

/** @returns GB/s (10^9 bytes) of each of five passes by so many threads; empty without the addon */
export function readBandwidth(threads: number): Promise<number[]> {
  return runChild<number[]>('harness/bandwidth-child', { threads });
}
