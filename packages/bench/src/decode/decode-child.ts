/** One measurement in a process of its own: the job is the argument, the answer goes to descriptor 3 as JSON. */
import { writeSync } from 'node:fs';
import { asCflowError, errorLine } from '@cflow/format';
import { loadAddon } from '@cflow/runtime-native';
import type { BandwidthRun, DecodeJob, DecodeRun } from './decode-job.js';
import { runCflow } from './run-cflow.js';
import { runLlama } from './run-llama.js';

/** Many times the last-level cache. */
const BANDWIDTH_BYTES = 2 ** 30;
const BANDWIDTH_RUNS = 5;

function run(job: DecodeJob): Promise<DecodeRun | BandwidthRun> {
  switch (job.kind) {
    case 'cflow':
      return runCflow(job);
    case 'llama.cpp':
      return runLlama(job);
    case 'bandwidth':
      return bandwidth(job.threads);
  }
}

async function bandwidth(threads: number): Promise<BandwidthRun> {
  const speeds = await loadAddon()?.readBandwidth?.(BANDWIDTH_BYTES, threads, BANDWIDTH_RUNS);
  return { gigabytesPerSecond: speeds ?? [] };
}

try {
  const answer = await run(JSON.parse(process.argv[2]!) as DecodeJob);
  writeSync(3, JSON.stringify(answer));
} catch (error) {
  const known = asCflowError(error);
  process.stderr.write(errorLine('decode-child', known));
  process.exitCode = known.exitCode;
}
