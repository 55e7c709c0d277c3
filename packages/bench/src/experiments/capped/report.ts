/** The outcome of the capped experiment. */
import type { GroupRun } from '../../runner/memory.js';
import type { CappedLengths, CappedRun } from './run.js';

export interface CappedRow {
  readonly engine: string;
  readonly tries: readonly GroupRun<CappedRun>[];
}

export interface CappedReport extends CappedLengths {
  readonly model: string;
  readonly fileBytes: number;
  readonly memory: number;
  readonly threads: number;
  readonly readAheadKib: number | undefined;
  readonly rows: readonly CappedRow[];
}
