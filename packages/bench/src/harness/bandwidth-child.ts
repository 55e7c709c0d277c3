/** Reads memory in a process of its own, which gives it back: the job is the argument, GB/s go to descriptor 3. */
import { loadAddon } from '@cflow/runtime-native';
import { answerJob } from './child.js';

/** Many times the last-level cache. */
const BYTES = 2 ** 30;
const PASSES = 5;

await answerJob('bandwidth-child', async ({ threads }: { threads: number }) => {
  return (await loadAddon()?.readBandwidth(BYTES, threads, PASSES)) ?? [];
});
