/** Passes over a model on disk, and a sweep of block sizes: claims 6 and 8 of the report (prefetch, order of the file). */
import { join } from 'node:path';
import { convert } from '@cflow/convert';
import { buildPlan, CflowError, type Container, type ModelFile, openModel, type Region } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { type NativeMachine, randomGenerator, requireNativeMachine } from '@cflow/runtime-native';
import { type BenchAddon, type RegionsRead, requireBenchAddon } from '../../runner/addon.js';
import { Run } from '../../runner/experiment.js';
import { answered } from '../../runner/native.js';
import { kib } from '../../runner/options.js';
import { interruption, temporaryFolder } from '../../runner/resources.js';

export interface StorageOptions {
  /** .cflow or .vflow; the other container is written beside it for as long as it takes. */
  readonly model: string;
  readonly directory: string;
  /** Bytes of a read, and reads under way at once, of the passes. */
  readonly block: number;
  readonly depth: number;
  /** Of each kind of pass, in turns. */
  readonly runs: number;
  /** Bytes of a run at least: passes over a small model are repeated. */
  readonly bytes: number;
  /** Sizes of the sweep. */
  readonly blocks: readonly number[];
  /** Of one measurement of the sweep. */
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
  /** Of one pass. */
  readonly bytes: number;
  /** 10^9 bytes a second of each run. */
  readonly speeds: readonly number[];
  /** Why reads were not direct though they were to be; empty if they were. */
  readonly reason: string;
}

export interface SweepRow {
  readonly mode: ModeName;
  readonly depth: number;
  readonly block: number;
  /** 10^9 bytes a second. */
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

/** @throws CflowError UNSUPPORTED without the addon, VERIFY_FAILED if passes read different bytes, as convert and readers do */
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
  const subjects = allPasses(files.map(({ container }) => container)).map((pass) => {
    const { fd, regions } = files.find(({ container }) => container === pass.container)!;
    const once = regions[pass.order];
    return { pass, fd, bytes: lengthOf(once), regions: repeated(once, bytes) };
  });
  const reads = await run.turns({
    subjects,
    rounds: runs,
    name: ({ pass: { mode, order, container } }) => `${mode}, ${order} order, .${container}`,
    measure({ pass: { mode, prefetch }, fd, regions }) {
      const io = { block, depth, backend: 'auto', mode: MODES[mode], prefetch } as const;
      return answered(addon.readRegions(fd, regions, io), model);
    },
  });
  requireSame(
    subjects.map(({ pass }) => pass),
    reads,
  );
  return subjects.map(({ pass, bytes }, i) => ({
    ...pass,
    bytes,
    speeds: reads[i]!.map((read) => read.bytes / read.seconds / 1e9),
    reason: pass.mode === 'direct' && !reads[i]![0]!.direct ? reads[i]![0]!.reason : '',
  }));
}

const lengthOf = (pairs: Float64Array) => pairs.reduce((sum, value, i) => sum + (i % 2 ? value : 0), 0);

/** So often that it is at least so many bytes; an odd number of times, as an even one folds to nothing. */
export function repeated(pairs: Float64Array, bytes: number): Float64Array {
  const times = Math.max(1, Math.ceil(bytes / lengthOf(pairs))) | 1;
  return Float64Array.from({ length: times * pairs.length }, (_, i) => pairs[i % pairs.length]!);
}

/** Containers differ in where the bytes lie, not in what they are. */
function requireSame(passes: readonly Pass[], reads: readonly (readonly RegionsRead[])[]): void {
  for (const order of ORDERS) {
    const folded = new Set(
      passes.flatMap((pass, i) => (pass.order === order ? reads[i]!.map((read) => read.folded) : [])),
    );
    if (folded.size > 1)
      throw new CflowError('VERIFY_FAILED', `passes in the order of the ${order} have read different bytes`);
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
  const subjects = modes.flatMap((mode) =>
    SWEEP_DEPTHS.flatMap((depth) =>
      blocks.filter((bytes) => bytes <= size).map((block) => ({ mode, depth, block })),
    ),
  );
  const speeds = await run.turns({
    subjects,
    rounds: 1,
    name: ({ mode, depth, block }) => `blocks of ${kib(block)}, ${mode}, ${depth} at once`,
    async measure({ mode, depth, block }) {
      const asked = { block, depth, milliseconds, backend: 'auto', mode: MODES[mode] } as const;
      const { bytes, seconds } = await answered(addon.diskBandwidth(fd, size, asked), model);
      return bytes / seconds / 1e9;
    },
  });
  return subjects.map((subject, i) => ({ ...subject, speed: speeds[i]![0]! }));
}

export const ORDERS = ['file', 'plan'] as const;
export type Order = (typeof ORDERS)[number];

/** `file`: all streams as they lie. `plan`: what one token asks for, as it asks, with experts drawn at random. */
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

/** `k` of `count`, ascending. */
function chosen(count: number, k: number, random: () => number): number[] {
  const left = Array.from({ length: count }, (_, i) => i);
  const taken = Array.from({ length: k }, () => left.splice(Math.floor(random() * left.length), 1)[0]!);
  return taken.sort((a, b) => a - b);
}
