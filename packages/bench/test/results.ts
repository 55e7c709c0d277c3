/** Made-up results. */
import { type BenchResult, type Machine, type Metric, RESULT_SCHEMA } from '../src/runner/result.js';

export const MACHINE: Machine = {
  cpu: 'Made-up 9000',
  isa: 'avx2',
  cores: { online: 8, allowed: 4, why: 'cgroup quota of 4 CPUs', load: 0.5 },
  memoryLimit: 16e9,
  readBandwidth: { threads: 4, median: 30, min: 29, max: 31 },
  disk: { write: 1.5, read: null },
  os: 'Linux 6.1',
  node: 'v20.19.0',
  commit: null,
};

export function resultWith(metrics: Metric[], change: Partial<BenchResult> = {}): BenchResult {
  const date = '2026-01-02T03:04:05.000Z';
  return {
    schema: RESULT_SCHEMA,
    command: 'decode',
    machine: MACHINE,
    date,
    options: {},
    metrics,
    ...change,
  };
}
