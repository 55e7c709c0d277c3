/**
 * Experts on disk: the gain of overlapping reads with computation, relative to waiting for each (report §5.14). Each run is
 * a process, in a memory cgroup if possible; variants are interleaved, and each round measures the disk.
 */
import { CflowError, type ModelConfig } from '@cflow/format';
import type { IoChoice } from '@cflow/runtime-native/internal/native/addon.js';
import { type NativeMachine, requireNativeMachine } from '@cflow/runtime-native/internal/native/machine.js';
import { runChild } from '../../runner/child.js';
import { Run } from '../../runner/experiment.js';
import { withModelFile } from '../../runner/files.js';
import { type GroupRun, MemoryGroup, runInGroup } from '../../runner/memory.js';
import { answered } from '../../runner/native.js';
import { type Cell, openOptions } from './cells.js';
import type { OverlapJob, OverlapLengths, OverlapRun } from './run.js';

export interface OverlapBenchOptions extends OverlapLengths {
  readonly file: string;
  readonly cells: readonly Cell[];
  readonly runs: number;
  /** Block size and queue depth of the disk measurement. */
  readonly io: IoChoice;
}

/** `group` is undefined if no cgroup can be created. */
type CellRun = GroupRun<OverlapRun> | { readonly run: OverlapRun; readonly group: undefined };

export interface CellRow {
  readonly cell: Cell;
  /** Memory limit in bytes; undefined for the reference. */
  readonly memory: number | undefined;
  readonly runs: readonly CellRun[];
}

export interface OverlapReport extends OverlapLengths {
  readonly model: string;
  readonly rows: readonly CellRow[];
  /** GB/s of each round: random blocks, read as by the engine. */
  readonly diskLimits: readonly number[];
  /** Why there was no cgroup; undefined if there was. */
  readonly noGroup: string | undefined;
}

const DISK_MILLISECONDS = 500;
/** Limit of the cgroup relative to the budget. */
const GRACE = 1.1;
/** Part of a budget computed from a number of experts that holds weights. */
const BUDGET_SHARE = 0.94;

/**
 * @throws CflowError UNSUPPORTED without the addon or experts, VERIFY_FAILED if any logit differs in any bit,
 * and errors of the runs
 */
export async function benchOverlap(options: OverlapBenchOptions, run = new Run()): Promise<OverlapReport> {
  const { file, cells, prompt, warmup, tokens } = options;
  return withModelFile(file, async ({ config }, source) => {
    const { addon, fd } = needed(config, source.fd);
    const memories = await memoriesOf(options, config, run);
    const diskLimits: number[] = [];
    let noGroup: string | undefined;
    let groups = 0;
    const results = await run.turns({
      variants: cells,
      rounds: options.runs,
      name: ({ name }) => name,
      async before() {
        const asked = { ...options.io, milliseconds: DISK_MILLISECONDS };
        const { bytes, seconds } = await answered(addon.diskBandwidth(fd, source.size, asked), file);
        diskLimits.push(bytes / seconds / 1e9);
      },
      async measure(cell): Promise<CellRun> {
        const memory = memories.get(cell);
        const options = openOptions(cell, config, memory);
        const job: OverlapJob = { file, options, lengths: { prompt, warmup, tokens } };
        const group = memory && (await MemoryGroup.create(`${groups++}`, Math.ceil(GRACE * memory)));
        if (group instanceof MemoryGroup) return runInGroup<OverlapRun>(group, 'overlap', job);
        if (group) noGroup = group;
        return { run: await runChild('overlap', job), group: undefined };
      },
    });
    const rows = cells.map((cell, i) => ({ cell, memory: memories.get(cell), runs: results[i]! }));
    requireSame(rows);
    return { model: config.name, prompt, warmup, tokens, rows, diskLimits, noGroup };
  });
}

function needed(config: ModelConfig, fd: number | undefined): { addon: NativeMachine; fd: number } {
  const addon = requireNativeMachine();
  if (fd !== undefined && config.layers.some(({ experts }) => experts)) return { addon, fd };
  throw new CflowError('UNSUPPORTED', 'the model has no experts to read from disk', {
    field: 'experts',
    remedy: 'cflow-bench synth --geometry olmoe-delayed writes a model with experts',
  });
}

/** Bytes of each cell: the budget, or the memory that a share of the experts and everything else need. */
async function memoriesOf(
  { cells, file }: OverlapBenchOptions,
  config: ModelConfig,
  run: Run,
): Promise<Map<Cell, number | undefined>> {
  const known = new Map<string, number>();
  const memories = new Map<Cell, number | undefined>();
  for (const cell of cells) {
    const { budget } = cell;
    if (budget && 'share' in budget && !known.has(budget.name)) {
      run.step(`memory for ${budget.name}`);
      known.set(budget.name, await memoryNeeded(cell, config, file));
    }
    memories.set(cell, budget && ('memory' in budget ? budget.memory : known.get(budget.name)));
  }
  return memories;
}

/** Measured by one short run. */
async function memoryNeeded(cell: Cell, config: ModelConfig, file: string): Promise<number> {
  const lengths = { prompt: 1, warmup: 0, tokens: 1 };
  const job: OverlapJob = { file, options: openOptions(cell, config), lengths };
  const { choice } = await runChild<OverlapRun>('overlap', job);
  const { process, weights, slots, caches } = choice.plan!.memory;
  return Math.ceil((process + weights + slots + caches) / BUDGET_SHARE);
}

/** Where the weights are must not change any bit of a logit. */
function requireSame(rows: readonly CellRow[]): void {
  const first = rows.flatMap(({ runs }) => runs.flatMap(({ run }) => run ?? []))[0];
  for (const { cell, runs } of rows) {
    for (const { run } of runs) {
      if (!run || run.digest === first!.digest) continue;
      const at = run.chosen.findIndex((id, i) => id !== first!.chosen[i]);
      const where = at < 0 ? 'the same tokens are selected' : `the token after position ${at} differs`;
      throw new CflowError(
        'VERIFY_FAILED',
        `${cell.name} computes logits that differ from the reference: ${where}`,
      );
    }
  }
}
