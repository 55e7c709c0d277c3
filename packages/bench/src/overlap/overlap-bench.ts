/**
 * Experts on disk: what overlapping their reads with computing gives over waiting for each (report §5.14). Every run is
 * a process of its own, in a memory cgroup where one can be made; arms take turns, and so does the disk's own speed.
 */
import { CflowError, type ModelConfig, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { type Addon, type IoChoice, requireAddon } from '@cflow/runtime-native';
import { runChild } from '../harness/child.js';
import { type GroupUse, MemoryGroup } from '../harness/memory-group.js';
import { answered } from '../harness/native.js';
import { type Cell, openOptions } from './cells.js';
import type { OverlapJob, OverlapLengths, OverlapRun } from './overlap-job.js';

export interface OverlapBenchOptions extends OverlapLengths {
  readonly file: string;
  readonly cells: readonly Cell[];
  readonly runs: number;
  /** How the disk's own speed is measured. */
  readonly io: IoChoice;
  readonly onStep?: (text: string) => void;
}

/** A run that ended, or that the kernel ended for its memory. */
export interface CellRun {
  readonly run: OverlapRun | undefined;
  /** Undefined where there is no cgroup. */
  readonly group: GroupUse | undefined;
}

export interface CellRow {
  readonly cell: Cell;
  /** Bytes that the process was told to keep to; undefined for the reference. */
  readonly memory: number | undefined;
  readonly runs: readonly CellRun[];
}

export interface OverlapReport extends OverlapLengths {
  readonly model: string;
  readonly rows: readonly CellRow[];
  /** 10^9 bytes a second of each round: random blocks, as the engine reads them. */
  readonly diskLimits: readonly number[];
  /** Why runs were in no cgroup; undefined if they were. */
  readonly noGroup: string | undefined;
}

const DISK_MILLISECONDS = 500;
/** Of the budget, what the kernel allows before it kills. */
const GRACE = 1.1;
/** Of a budget that is made for a number of experts, what is left to them and to the rest of the weights. */
const BUDGET_SHARE = 0.94;

/** @throws CflowError UNSUPPORTED without the addon or experts, VERIFY_FAILED if arms differ in any bit, and as runs fail */
export async function benchOverlap(options: OverlapBenchOptions): Promise<OverlapReport> {
  const source = await openFileSource(options.file);
  try {
    const { config } = await openModel(source);
    const { addon, fd } = needed(config, source.fd);
    const disk = { addon, fd, size: source.size };
    const { prompt, warmup, tokens } = options;
    const bench = new OverlapBench(options, config, disk);
    const rows = await bench.run();
    requireSame(rows);
    const { diskLimits, noGroup } = bench;
    return { model: config.name, prompt, warmup, tokens, rows, diskLimits, noGroup };
  } finally {
    await source.close();
  }
}

function needed(config: ModelConfig, fd: number | undefined): { addon: Addon; fd: number } {
  const addon = requireAddon();
  if (fd !== undefined && config.layers.some(({ experts }) => experts)) return { addon, fd };
  throw new CflowError('UNSUPPORTED', 'a model without experts fetches nothing that could be chosen', {
    field: 'experts',
    remedy: 'cflow-bench synth --geometry olmoe-delayed writes one with',
  });
}

interface Disk {
  readonly addon: Addon;
  readonly fd: number;
  readonly size: number;
}

class OverlapBench {
  readonly diskLimits: number[] = [];
  noGroup: string | undefined;
  readonly #options: OverlapBenchOptions;
  readonly #config: ModelConfig;
  readonly #disk: Disk;
  #groups = 0;

  constructor(options: OverlapBenchOptions, config: ModelConfig, disk: Disk) {
    this.#options = options;
    this.#config = config;
    this.#disk = disk;
  }

  async run(): Promise<CellRow[]> {
    const { cells, runs, onStep } = this.#options;
    const memories = await this.#memories();
    const rows = cells.map((cell, i) => ({ cell, memory: memories[i], runs: [] as CellRun[] }));
    for (let round = 0; round < runs; round++) {
      this.diskLimits.push(await this.#diskLimit());
      for (const { cell, memory, runs: done } of rows) {
        onStep?.(`run ${round + 1} of ${runs}: ${cell.name}`);
        done.push(await this.#child(cell, memory));
      }
    }
    return rows;
  }

  /** Bytes for each cell: as asked, or what its experts need with all else, as one short run says. */
  async #memories(): Promise<(number | undefined)[]> {
    const known = new Map<string, number>();
    const memories: (number | undefined)[] = [];
    for (const cell of this.#options.cells) {
      if (cell.budget && 'share' in cell.budget && !known.has(cell.budget.name)) {
        this.#options.onStep?.(`memory for ${cell.budget.name}`);
        known.set(cell.budget.name, await this.#probe(cell));
      }
      const { budget } = cell;
      memories.push(budget && ('memory' in budget ? budget.memory : known.get(budget.name)));
    }
    return memories;
  }

  async #probe(cell: Cell): Promise<number> {
    const options = openOptions(cell, this.#config);
    const lengths = { prompt: 1, warmup: 0, tokens: 1 };
    const job: OverlapJob = { file: this.#options.file, options, lengths };
    const { choice } = await runChild<OverlapRun>('overlap/overlap-child', job);
    const { process, weights, slots, caches } = choice.plan!.memory;
    return Math.ceil((process + weights + slots + caches) / BUDGET_SHARE);
  }

  async #child(cell: Cell, memory: number | undefined): Promise<CellRun> {
    const { file, prompt, warmup, tokens } = this.#options;
    const options = openOptions(cell, this.#config, memory);
    const job: OverlapJob = { file, options, lengths: { prompt, warmup, tokens } };
    if (memory === undefined) return { run: await runChild('overlap/overlap-child', job), group: undefined };
    const group = await MemoryGroup.create(`${this.#groups++}`, Math.ceil(GRACE * memory));
    if (typeof group === 'string') {
      this.noGroup = group;
      return { run: await runChild('overlap/overlap-child', job), group: undefined };
    }
    try {
      return await inGroup(group, job);
    } finally {
      await group.remove();
    }
  }

  async #diskLimit(): Promise<number> {
    const { addon, fd, size } = this.#disk;
    const asked = { ...this.#options.io, milliseconds: DISK_MILLISECONDS };
    const { bytes, seconds } = await answered(addon.diskBandwidth(fd, size, asked), this.#options.file);
    return bytes / seconds / 1e9;
  }
}

/** A run that is killed for its memory is a finding, not a failure. */
async function inGroup(group: MemoryGroup, job: OverlapJob): Promise<CellRun> {
  try {
    const run = await runChild<OverlapRun>('overlap/overlap-child', { ...job, group: group.folder });
    return { run, group: await group.use() };
  } catch (error) {
    const use = await group.use();
    if (!use.killed) throw error;
    return { run: undefined, group: use };
  }
}

/** Where weights come from changes no bit of what is computed with them. */
function requireSame(rows: readonly CellRow[]): void {
  const first = rows.flatMap(({ runs }) => runs.flatMap(({ run }) => run ?? []))[0];
  for (const { cell, runs } of rows) {
    for (const { run } of runs) {
      if (!run || run.digest === first!.digest) continue;
      const at = run.chosen.findIndex((id, i) => id !== first!.chosen[i]);
      const where = at < 0 ? 'the same tokens are chosen' : `the token after position ${at} is another`;
      throw new CflowError(
        'VERIFY_FAILED',
        `${cell.name} computes other logits than the reference: ${where}`,
      );
    }
  }
}
