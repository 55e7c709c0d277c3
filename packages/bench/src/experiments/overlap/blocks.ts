/** Which size of reads, and how many at once: the sweep behind the engine's defaults. */
import { openFileSource } from '@cflow/format/node';
import { type IoChoice, requireNativeMachine } from '@cflow/runtime-native';
import { Run } from '../../runner/experiment.js';
import { answered } from '../../runner/native.js';
import { kib } from '../../runner/options.js';
import { type Measured, metric, type Table } from '../../runner/result.js';
import { median } from '../../runner/statistics.js';

export const BLOCKS = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384].map((kib) => 1024 * kib);
export const DEPTHS = [1, 2, 4, 8, 16];

export interface BlocksOptions {
  readonly file: string;
  readonly blocks: readonly number[];
  readonly depths: readonly number[];
  readonly runs: number;
  readonly milliseconds: number;
  /** What the engine does. */
  readonly io: IoChoice;
}

export interface BlockRow {
  readonly block: number;
  readonly depth: number;
  /** 10^9 bytes a second of each run. */
  readonly speeds: readonly number[];
}

/** Of the best rate, what is enough. */
const ENOUGH = 0.95;

/** @throws CflowError UNSUPPORTED without the addon, NOT_READABLE */
export async function sweepBlocks(options: BlocksOptions, run = new Run()): Promise<BlockRow[]> {
  const { file, runs, depths, milliseconds, io } = options;
  const addon = requireNativeMachine();
  const source = await openFileSource(file);
  try {
    const sizes = options.blocks.filter((block) => block <= source.size);
    const subjects = sizes.flatMap((block) => depths.map((depth) => ({ block, depth })));
    const speeds = await run.turns({
      subjects,
      rounds: runs,
      name: ({ block, depth }) => `${kib(block)}, ${depth} at once`,
      async measure({ block, depth }) {
        const asked = { ...io, block, depth, milliseconds };
        const { bytes, seconds } = await answered(addon.diskBandwidth(source.fd!, source.size, asked), file);
        return bytes / seconds / 1e9;
      },
    });
    return subjects.map((subject, i) => ({ ...subject, speeds: speeds[i]! }));
  } finally {
    await source.close();
  }
}

const middle = ({ speeds }: BlockRow) => median(speeds);

/**
 * The least bytes under way that read at nearly the best rate, and of those the smallest blocks: an expert is waited
 * for until its last block has come, and what is under way cannot give way to what is more urgent.
 */
export function chooseBlocks(rows: readonly BlockRow[]): BlockRow {
  const best = Math.max(...rows.map(middle));
  const enough = rows.filter((row) => middle(row) >= ENOUGH * best);
  return enough.sort((a, b) => a.block * a.depth - b.block * b.depth || a.block - b.block)[0]!;
}

export function blocksMeasured(rows: readonly BlockRow[], io: IoChoice): Measured {
  const chosen = chooseBlocks(rows);
  const own = rows.find(({ block, depth }) => block === io.block && depth === io.depth);
  return {
    metrics: rows.map(({ block, depth, speeds }) =>
      metric(`blocks of ${kib(block)}, ${depth} at once: read`, 'GB/s', 'higher', speeds),
    ),
    tables: [sweepTable(rows, explanation(rows, chosen, own))],
  };
}

function explanation(rows: readonly BlockRow[], chosen: BlockRow, own: BlockRow | undefined): string {
  const best = Math.max(...rows.map(middle));
  const share = (row: BlockRow) => `${((100 * middle(row)) / best).toFixed(0)} %`;
  const least = `the least under way that reaches ${100 * ENOUGH} % of the best is ${kib(chosen.block)}, ${chosen.depth} at once`;
  return own ? `${least}; the engine's ${kib(own.block)}, ${own.depth} at once reach ${share(own)}` : least;
}

function sweepTable(rows: readonly BlockRow[], why: string): Table {
  const depths = [...new Set(rows.map(({ depth }) => depth))];
  const blocks = [...new Set(rows.map(({ block }) => block))];
  return {
    title: `Reads at random places, GB/s: ${why}`,
    columns: ['block', ...depths.map((depth) => `${depth} at once`)],
    rows: blocks.map((block) => [
      kib(block),
      ...rows.filter((row) => row.block === block).map((row) => Number(middle(row).toFixed(2))),
    ]),
  };
}
