/** Reads of a model from disk, and a sweep of block sizes: claims 6 and 8 of the report (prefetch, file order). */
import { join } from 'node:path';
import { convert } from '@cflow/convert';
import { buildPlan, CflowError, type Container, type ModelFile, openModel, type Region } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { type NativeMachine, requireNativeMachine } from '@cflow/runtime-native/internal/native/machine.js';
import { randomGenerator } from '@cflow/runtime-native/internal/sampling/random.js';
import { type BenchAddon, type RegionsRead, requireBenchAddon } from '../../runner/addon.js';
import { Run } from '../../runner/experiment.js';
import { answered } from '../../runner/native.js';
import { kib } from '../../runner/options.js';
import { interruption, temporaryFolder } from '../../runner/resources.js';

export interface StorageOptions {
  /** .cflow or .vflow; the other file format is written next to it, then removed. */
  readonly model: string;
  readonly directory: string;
  /** Block size in bytes, and queue depth. */
  readonly block: number;
  readonly depth: number;
  /** Runs of each kind of pass, interleaved. */
  readonly runs: number;
  /** Minimum bytes of a run: passes over a small model are repeated. */
  readonly bytes: number;
  /** Block sizes of the sweep. */
  readonly blocks: readonly number[];
  /** Duration of one measurement of the sweep. */
  readonly milliseconds: number;
}

const MODES = { direct: 'auto', buffered: 'buffered' } as const;
type ModeName = keyof typeof MODES;

export interface Pass {
  readonly container: Container;
  readonly order: Order;
  readonly mode: ModeName;
  readonly prefetch: boolean;
}

export interface PassRow extends Pass {
  /** Bytes of one pass. */
  readonly bytes: number;
  /** GB/s of each run. */
  readonly speeds: readonly number[];
  /** Why direct reads were buffered; empty if they were direct. */
  readonly reason: string;
}

export interface SweepRow {
  readonly mode: ModeName;
  readonly depth: number;
  readonly block: number;
  /** GB/s. */
  readonly speed: number;
}

export interface StorageReport {
  readonly fileBytes: number;
  readonly block: number;
  readonly depth: number;
  readonly passes: readonly PassRow[];
  readonly sweep: readonly SweepRow[];
}

interface Opened {
  readonly container: Container;
  readonly fd: number;
  readonly size: number;
  readonly regions: Readonly<Record<Order, Float64Array>>;
  close(): Promise<void>;
}

/** @throws CflowError UNSUPPORTED without the addon, VERIFY_FAILED if passes read different bytes, and errors of convert and readers */
export function benchStorage(options: StorageOptions, run = new Run()): Promise<StorageReport> {
  return temporaryFolder(options.directory, 'storage', (folder) => measureIn(folder, options, run));
}

async function measureIn(folder: string, options: StorageOptions, run: Run): Promise<StorageReport> {
  const addon = requireNativeMachine();
  const opened: Opened[] = [];
  try {
    opened.push(await open(options.model));
    opened.push(await open(await otherContainer(options.model, opened[0]!.container, folder)));
    const passes = await readAll(requireBenchAddon(), opened, options, run);
    const sweep = await sweepBlocks(addon, opened[0]!, options, run);
    return { fileBytes: opened[0]!.size, block: options.block, depth: options.depth, passes, sweep };
  } finally {
    for (const file of opened) await file.close();
  }
}

async function otherContainer(source: string, is: Container, folder: string): Promise<string> {
  const container = is === 'cflow' ? 'vflow' : 'cflow';
  const output = join(folder, `model.${container}`);
  await convert({ source, output, container, signal: interruption });
  return output;
}

async function open(path: string): Promise<Opened> {
  const source = await openFileSource(path);
  const file = await openModel(source);
  const pairs = (order: Order) =>
    Float64Array.from(regionsInOrder(file, order).flatMap(({ offset, length }) => [offset, length]));
  return {
    container: file.container,
    fd: source.fd!,
    size: source.size,
    regions: { file: pairs('file'), plan: pairs('plan') },
    close: () => source.close(),
  };
}

export function allPasses(containers: readonly Container[]): Pass[] {
  const modes = Object.keys(MODES) as ModeName[];
  return modes.flatMap((mode) =>
    ORDERS.flatMap((order) =>
      containers.flatMap((container) =>
        [false, true].map((prefetch) => ({ container, order, mode, prefetch })),
      ),
    ),
  );
}

async function readAll(
  addon: BenchAddon,
  files: readonly Opened[],
  { block, depth, runs, bytes, model }: StorageOptions,
  run: Run,
): Promise<PassRow[]> {
  const variants = allPasses(files.map(({ container }) => container)).map((pass) => {
    const { fd, regions } = files.find(({ container }) => container === pass.container)!;
    const once = regions[pass.order];
    return { pass, fd, bytes: lengthOf(once), regions: repeated(once, bytes) };
  });
  const reads = await run.turns({
    variants,
    rounds: runs,
    name: ({ pass: { mode, order, container } }) => `${mode}, ${order} order, .${container}`,
    measure({ pass: { mode, prefetch }, fd, regions }) {
      const io = { block, depth, backend: 'auto', mode: MODES[mode], prefetch } as const;
      return answered(addon.readRegions(fd, regions, io), model);
    },
  });
  requireSame(
    variants.map(({ pass }) => pass),
    reads,
  );
  return variants.map(({ pass, bytes }, i) => ({
    ...pass,
    bytes,
    speeds: reads[i]!.map((read) => read.bytes / read.seconds / 1e9),
    reason: pass.mode === 'direct' && !reads[i]![0]!.direct ? reads[i]![0]!.reason : '',
  }));
}

const lengthOf = (pairs: Float64Array) => pairs.reduce((sum, value, i) => sum + (i % 2 ? value : 0), 0);

/** Repetitions that reach the minimum bytes; odd, because XOR of an even number is 0. */
export function repeated(pairs: Float64Array, bytes: number): Float64Array {
  const times = Math.max(1, Math.ceil(bytes / lengthOf(pairs))) | 1;
  return Float64Array.from({ length: times * pairs.length }, (_, i) => pairs[i % pairs.length]!);
}

/** File formats differ in the position of bytes, not in content. */
function requireSame(passes: readonly Pass[], reads: readonly (readonly RegionsRead[])[]): void {
  for (const order of ORDERS) {
    const folded = new Set(
      passes.flatMap((pass, i) => (pass.order === order ? reads[i]!.map((read) => read.folded) : [])),
    );
    if (folded.size > 1)
      throw new CflowError('VERIFY_FAILED', `passes in ${order} order read different bytes`);
  }
}

const SWEEP_DEPTHS = [1, 4];

async function sweepBlocks(
  addon: NativeMachine,
  { fd, size }: Opened,
  { blocks, milliseconds, model }: StorageOptions,
  run: Run,
): Promise<SweepRow[]> {
  const modes = Object.keys(MODES) as ModeName[];
  const variants = modes.flatMap((mode) =>
    SWEEP_DEPTHS.flatMap((depth) =>
      blocks.filter((bytes) => bytes <= size).map((block) => ({ mode, depth, block })),
    ),
  );
  const speeds = await run.turns({
    variants,
    rounds: 1,
    name: ({ mode, depth, block }) => `blocks of ${kib(block)}, ${mode}, ${depth} at once`,
    async measure({ mode, depth, block }) {
      const asked = { block, depth, milliseconds, backend: 'auto', mode: MODES[mode] } as const;
      const { bytes, seconds } = await answered(addon.diskBandwidth(fd, size, asked), model);
      return bytes / seconds / 1e9;
    },
  });
  return variants.map((variant, i) => ({ ...variant, speed: speeds[i]![0]! }));
}

export const ORDERS = ['file', 'plan'] as const;
export type Order = (typeof ORDERS)[number];

/** `file`: all streams in file order. `plan`: streams of one token in plan order, with random experts. */
export function regionsInOrder(file: ModelFile, order: Order, seed = 1): Region[] {
  return order === 'file' ? fileOrder(file) : planOrder(file, seed);
}

function fileOrder({ streams }: ModelFile): Region[] {
  return [...streams.values()].sort((a, b) => a.offset - b.offset);
}

function planOrder({ config, streams }: ModelFile, seed: number): Region[] {
  const random = randomGenerator(seed);
  const named = (name: string) => streams.get(name)!;
  return buildPlan(config, { transfers: 'overlap' }).steps.flatMap((step) => {
    if (step.op !== 'call') return [];
    const { target } = step;
    if (target.kind === 'stream') return [named(target.stream)];
    const { count, topK } = config.layers[target.layer]!.experts!;
    return chosen(count, topK, () => random.next()).map((expert) =>
      named(`layers.${target.layer}.experts.${expert}`),
    );
  });
}

/** `k` of `count` indices, ascending. */
function chosen(count: number, k: number, random: () => number): number[] {
  const left = Array.from({ length: count }, (_, i) => i);
  const taken = Array.from({ length: k }, () => left.splice(Math.floor(random() * left.length), 1)[0]!);
  return taken.sort((a, b) => a - b);
}
