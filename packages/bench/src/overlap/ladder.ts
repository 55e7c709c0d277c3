/** PIPO's ablation ladder (§6.4) for experts on disk: what each part of the pipeline adds to the one before. */
import type { EngineOptions } from '@cflow/runtime-native';
import { type Measured, metric, type Table } from '../harness/result.js';
import { median, spread } from '../harness/statistics.js';
import type { Arm } from './cells.js';
import type { OverlapReport } from './overlap-bench.js';
import { tokenTime } from './overlap-measured.js';

/** What reads were before: small, one at a time, through the page cache; replacement by recency. */
const PLAIN = { block: 128 * 1024, depth: 1, backend: 'threads', mode: 'buffered', halfLife: 0 } as const;
const RECENCY = { halfLife: 0 };

const rung = (
  name: string,
  transfers: NonNullable<EngineOptions['transfers']>,
  direct: EngineOptions['direct'],
): Arm => ({
  name,
  options: { weights: 'direct', transfers, direct },
});

/** Each rung has all of those before it. @param tuned block and depth, where they are not the engine's own */
export const ladder = (tuned: NonNullable<EngineOptions['direct']>): readonly Arm[] => [
  rung('no overlap', 'stall', PLAIN),
  rung('+ overlap', 'overlap', PLAIN),
  rung('+ transfer suite', 'overlap', { ...tuned, ...RECENCY }),
  rung('+ prediction and cache', 'predict', tuned),
];

export function ladderMeasured({ model, rows }: OverlapReport): Measured {
  const rungs = rows.filter(({ cell }) => cell.budget);
  const times = rungs.map(({ runs }) => runs.flatMap(({ run }) => (run ? [tokenTime(run)] : [])));
  const over = (i: number, base: number) =>
    times[i]!.flatMap((time, run) => (times[base]![run] ? [times[base]![run]! / time] : []));
  const metrics = rungs.flatMap(({ cell }, i) => [
    metric(
      `ladder: ${cell.arm.name}: decode`,
      'tok/s',
      'higher',
      times[i]!.map((time) => 1 / time),
    ),
    metric(`ladder: ${cell.arm.name}: over the first`, 'x', 'higher', over(i, 0)),
  ]);
  return { metrics, tables: [ladderTable(model, rungs, times)] };
}

function ladderTable(
  model: string,
  rungs: OverlapReport['rows'],
  times: readonly (readonly number[])[],
): Table {
  const middle = times.map((runs) => median([...runs].sort((a, b) => a - b)));
  const { budget, threads } = rungs[0]!.cell;
  return {
    title: `Ladder, ${model}, ${budget!.name}, ${threads} threads: ms a token`,
    columns: ['rung', 'median', 'min', 'max', 'over the one before', 'over the first'],
    rows: rungs.map(({ cell }, i) => {
      const { min, max } = spread(times[i]!);
      const factors = [middle[Math.max(0, i - 1)]! / middle[i]!, middle[0]! / middle[i]!];
      const numbers = [...[middle[i]!, min, max].map((seconds) => 1e3 * seconds), ...factors];
      return [cell.arm.name, ...numbers.map((value) => Number(value.toFixed(2)))];
    }),
  };
}
