/** Sweep of block sizes and queue depths; the source of the engine's defaults. */
import { openFileSource } from '@cflow/format/node';
import type { IoChoice } from '@cflow/runtime-native/internal/native/addon.js';
import { requireNativeMachine } from '@cflow/runtime-native/internal/native/machine.js';
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
  /** The engine's defaults. */
  readonly io: IoChoice;
}

export interface BlockRow {
  readonly block: number;
  readonly depth: number;
  /** GB/s of each run. */
  readonly speeds: readonly number[];
}

/** Sufficient share of the best rate. */
const ENOUGH = 0.95;

/** @throws CflowError UNSUPPORTED without the addon, NOT_READABLE */
export async function sweepBlocks(options: BlocksOptions, run = new Run()): Promise<BlockRow[]> {
  const { file, runs, depths, milliseconds, io } = options;
  const addon = requireNativeMachine();
  const source = await openFileSource(file);
  try {
    const sizes = options.blocks.filter((block) => block <= source.size);
    const variants = sizes.flatMap((block) => depths.map((depth) => ({ block, depth })));
    const speeds = await run.turns({
      variants,
      rounds: runs,
      name: ({ block, depth }) => `${kib(block)}, ${depth} at once`,
      async measure({ block, depth }) {
        const asked = { ...io, block, depth, milliseconds };
        const { bytes, seconds } = await answered(addon.diskBandwidth(source.fd!, source.size, asked), file);
        return bytes / seconds / 1e9;
      },
    });
    return variants.map((variant, i) => ({ ...variant, speeds: speeds[i]! }));
  } finally {
    await source.close();
  }
}

const middle = ({ speeds }: BlockRow) => median(speeds);

/**
 * The fewest bytes in flight that reach nearly the best rate, then the smallest blocks: an expert waits for its last
 * block, and reads in flight cannot be preempted by more urgent ones.
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
  const least = `the fewest bytes in flight that reach ${100 * ENOUGH} % of the best rate: ${kib(chosen.block)}, depth ${chosen.depth}`;
  return own ? `${least}; the engine's ${kib(own.block)}, depth ${own.depth} reach ${share(own)}` : least;
}

function sweepTable(rows: readonly BlockRow[], why: string): Table {
  const depths = [...new Set(rows.map(({ depth }) => depth))];
  const blocks = [...new Set(rows.map(({ block }) => block))];
  return {
    title: `Random reads, GB/s: ${why}`,
    columns: ['block', ...depths.map((depth) => `${depth} at once`)],
    rows: blocks.map((block) => [
      kib(block),
      ...rows.filter((row) => row.block === block).map((row) => Number(middle(row).toFixed(2))),
    ]),
  };
}
