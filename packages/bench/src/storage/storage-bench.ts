/** Claims 6 and 8: what a prefetch instruction and the order of a file give to reading it from the disk. */
import { join } from 'node:path';
import { convert } from '@cflow/convert';
import { CflowError, type Container, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { type Addon, type RegionsRead, requireAddon } from '@cflow/runtime-native';
import { answered } from '../harness/native.js';
import { interruption, temporaryFolder, throwIfInterrupted } from '../harness/resources.js';
import { type Measured, metric, type Table } from '../harness/result.js';
import { spread } from '../harness/statistics.js';
import { ORDERS, type Order, regionsInOrder } from './regions.js';

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
  readonly onStep?: (text: string) => void;
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
export async function benchStorage(options: StorageOptions): Promise<StorageReport> {
  return temporaryFolder(options.directory, 'storage', (folder) => measureIn(folder, options));
}

async function measureIn(folder: string, options: StorageOptions): Promise<StorageReport> {
  const addon = requireAddon();
  const opened: Opened[] = [];
  try {
    opened.push(await open(options.model));
    opened.push(await open(await otherContainer(options.model, opened[0]!.container, folder)));
    const passes = await readAll(addon, opened, options);
    const sweep = await sweepBlocks(addon, opened[0]!, options);
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

async function readAll(addon: Addon, files: readonly Opened[], options: StorageOptions): Promise<PassRow[]> {
  const { block, depth, runs, bytes } = options;
  const passes = allPasses(files.map(({ container }) => container)).map((pass) => {
    const { fd, regions } = files.find(({ container }) => container === pass.container)!;
    return { ...pass, fd, once: regions[pass.order], regions: repeated(regions[pass.order], bytes) };
  });
  const reads = passes.map((): RegionsRead[] => []);
  for (let run = 0; run < runs; run++) {
    for (const [i, { fd, regions, container, order, mode, prefetch }] of passes.entries()) {
      throwIfInterrupted();
      options.onStep?.(`run ${run + 1} of ${runs}: ${mode}, ${order} order, .${container}`);
      reads[i]!.push(
        await answered(
          addon.readRegions(fd, regions, { block, depth, backend: 'auto', mode: MODES[mode], prefetch }),
          options.model,
        ),
      );
    }
  }
  requireSame(passes, reads);
  return passes.map(({ container, order, mode, prefetch, once }, i) => ({
    container,
    order,
    mode,
    prefetch,
    bytes: lengthOf(once),
    speeds: reads[i]!.map((read) => read.bytes / read.seconds / 1e9),
    reason: mode === 'direct' && !reads[i]![0]!.direct ? reads[i]![0]!.reason : '',
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

async function sweepBlocks(addon: Addon, { fd, size }: Opened, options: StorageOptions): Promise<SweepRow[]> {
  const rows: SweepRow[] = [];
  for (const mode of Object.keys(MODES) as ModeName[]) {
    for (const depth of SWEEP_DEPTHS) {
      for (const block of options.blocks.filter((bytes) => bytes <= size)) {
        throwIfInterrupted();
        options.onStep?.(`blocks of ${block / 1024} KiB, ${mode}, ${depth} at once`);
        const { milliseconds } = options;
        const asked = { block, depth, milliseconds, backend: 'auto', mode: MODES[mode] } as const;
        const { bytes, seconds } = await answered(addon.diskBandwidth(fd, size, asked), options.model);
        rows.push({ mode, depth, block, speed: bytes / seconds / 1e9 });
      }
    }
  }
  return rows;
}

const GB = 'GB/s';
const fixed = (value: number) => Number(value.toFixed(3));
const kib = (bytes: number) => `${bytes / 1024} KiB`;

export const passName = ({ container, order, mode, prefetch }: Pass) =>
  `.${container}, ${mode}, order of the ${order}, prefetch ${prefetch ? 1 : 0}`;

export function storageMeasured(report: StorageReport): Measured {
  const { passes, sweep } = report;
  return {
    metrics: [
      ...passes.map((pass) => metric(`${passName(pass)}: read`, GB, 'higher', pass.speeds)),
      ...ratios(
        passes,
        ({ prefetch }) => prefetch,
        (pass) => ({ ...pass, prefetch: false }),
        'prefetch 1 by 0',
      ),
      ...ratios(
        passes,
        ({ container }) => container === 'vflow',
        (pass) => ({ ...pass, container: 'cflow' }),
        '.vflow by .cflow',
      ),
      ...sweep.map(({ mode, depth, block, speed }) =>
        metric(`blocks of ${kib(block)}, ${mode}, ${depth} at once: read`, GB, 'higher', [speed]),
      ),
    ],
    tables: [passTable(report), sweepTable(report)],
  };
}

/** Run by run: what a change of one thing gives. */
function ratios(
  passes: readonly PassRow[],
  changed: (pass: Pass) => boolean,
  back: (pass: Pass) => Pass,
  title: string,
) {
  return passes.filter(changed).map((pass) => {
    const before = passes.find((other) => passName(other) === passName(back(pass)))!;
    const runs = pass.speeds.map((speed, run) => speed / before.speeds[run]!);
    return metric(`${passName(pass)}: ${title}`, 'x', 'higher', runs);
  });
}

function passTable({ passes, fileBytes, block, depth }: StorageReport): Table {
  const reason = passes.find((pass) => pass.reason)?.reason;
  return {
    title: `Passes over ${(fileBytes / 1e6).toFixed(1)} MB, reads of ${kib(block)}, ${depth} at once${reason ? `; not direct: ${reason}` : ''}`,
    columns: ['mode', 'order', 'container', 'prefetch', 'MB', 'GB/s', 'min', 'max'],
    rows: passes.map(({ mode, order, container, prefetch, bytes, speeds }) => {
      const { median, min, max } = spread(speeds);
      const numbers = [bytes / 1e6, median, min, max].map(fixed);
      return [mode, order, `.${container}`, prefetch ? 1 : 0, ...numbers];
    }),
  };
}

function sweepTable({ sweep }: StorageReport): Table {
  const arms = [...new Set(sweep.map(({ mode, depth }) => `${mode}, ${depth} at once`))];
  const blocks = [...new Set(sweep.map(({ block }) => block))];
  return {
    title: 'Blocks at random places, GB/s',
    columns: ['block', ...arms],
    rows: blocks.map((block) => [
      kib(block),
      ...sweep.filter((row) => row.block === block).map(({ speed }) => fixed(speed)),
    ]),
  };
}
