/** Which weights stay in memory and which are fetched: regions of the file, and the transfers of the streams. */
import {
  elements,
  type ModelFile,
  type ProgramStep,
  type Stream,
  streamName,
  streamPieces,
} from '@cflow/format';
import type { NativeTiers, ProgramPhase } from './program.js';

/** What is fetched while the model runs; everything else stays in memory. */
export interface Placement {
  /** Streams that every token fetches, by name. */
  readonly streams: ReadonlySet<string>;
  /** Whether experts are fetched when a routing chose them. */
  readonly experts: boolean;
}

export const IN_MEMORY: Placement = { streams: new Set(), experts: false };

/** Layers that have experts, in order: bank i holds those of the i-th. */
export function bankLayers(file: ModelFile): number[] {
  return file.config.layers.flatMap(({ experts }, layer) => (experts ? [layer] : []));
}

/** Byte range of a file. */
export interface Region {
  readonly offset: number;
  readonly length: number;
}

const flat = (regions: readonly Region[]) =>
  Float64Array.from(regions.flatMap(({ offset, length }) => [offset, length]));

/** The regions of a program; `order` are the fetched streams in the order of their use. */
export function nativeTiers(file: ModelFile, placement: Placement, order: readonly string[]): NativeTiers {
  return {
    resident: flat(residentRegions(file, placement)),
    streams: flat(order.map((name) => file.streams.get(name)!)),
    banks: bankLayers(file).map((layer) => ({ regions: flat(expertRegions(file, layer)) })),
  };
}

export function expertRegions(file: ModelFile, layer: number): Region[] {
  const { count } = file.config.layers[layer]!.experts!;
  return Array.from({ length: count }, (_, expert) => file.streams.get(streamName.expert(layer, expert))!);
}

/**
 * What is read into memory when a model that is fetched from is opened. The embedding is not: a token reads one row of
 * it, from the page cache, unless it is the LM head too. Norms, biases and routers of fetched streams are.
 */
export function residentRegions(file: ModelFile, placement: Placement): Region[] {
  const { tiedEmbeddings } = file.config;
  return [...file.streams.values()].flatMap((region) => {
    const { kind, name } = region.stream;
    if (placement.streams.has(name)) return plainRegions(file, region.stream, region.offset);
    if (kind === 'expert') return placement.experts ? [] : [region];
    return kind === 'embedding' && !tiedEmbeddings ? [] : [region];
  });
}

/** The plain f32 tensors of a stream. */
function plainRegions(file: ModelFile, stream: Stream, offset: number): Region[] {
  return [...streamPieces(stream, file.dtype)].flatMap((piece) =>
    piece.kind === 'plain'
      ? [{ offset: offset + piece.offset, length: 4 * elements(piece.tensor.shape) }]
      : [],
  );
}

/** Phases in which a fetched stream is used. */
interface StreamUse {
  readonly stream: number;
  readonly first: number;
  readonly last: number;
}

export interface PlacedTransfers {
  readonly steps: readonly ProgramStep[];
  readonly phases: readonly ProgramPhase[];
  /** The old index of each fetched stream, in the order of use. */
  readonly order: readonly number[];
  /** Fetched streams that are in use at the same time, at most. */
  readonly liveStreams: number;
}

/**
 * Numbers fetched streams by their first use, and adds their transfers: called at the end of the phase before the first
 * use, released at the end of the last. With `stall` whoever calls also waits. Fetched experts are released where they
 * were last used: a release among the steps would keep them from being late.
 */
export function placeTransfers(
  steps: readonly ProgramStep[],
  phases: readonly ProgramPhase[],
  stall: boolean,
): PlacedTransfers {
  const uses = streamUses(steps, phases);
  const number = new Map(uses.map(({ stream }, index) => [stream, index]));
  const placed: ProgramStep[] = steps.map((step) =>
    'stream' in step && step.stream >= 0 ? { ...step, stream: number.get(step.stream)! } : step,
  );
  const added = phases.map((): number[] => []);
  const add = (phase: number, step: ProgramStep) => added[phase]!.push(placed.push(step) - 1);
  // A slot is free for what is called in the same phase once it is released.
  for (const [bank, phase] of lastExpertUses(steps, phases)) add(phase, { op: 'releaseExperts', bank });
  const releases = added.map((list) => list.splice(0));
  for (const [stream, { last }] of uses.entries()) add(last, { op: 'releaseStream', stream });
  for (const [stream, { first }] of uses.entries()) {
    add(first - 1, { op: 'callStream', stream });
    if (stall) add(first - 1, { op: 'syncStream', stream });
  }
  return {
    steps: placed,
    phases: phases.map((phase, i) => ({
      ...phase,
      transfers: [...releases[i]!, ...phase.transfers, ...added[i]!],
    })),
    order: uses.map(({ stream }) => stream),
    liveStreams: phases.reduce((most, _, at) => Math.max(most, live(uses, at)), 0),
  };
}

/** The last phase that uses each fetched bank. */
function lastExpertUses(steps: readonly ProgramStep[], phases: readonly ProgramPhase[]): Map<number, number> {
  const last = new Map<number, number>();
  for (const [at, { parallel }] of phases.entries()) {
    for (const index of parallel) {
      const step = steps[index]!;
      if (step.op === 'expertsDown' && step.bank >= 0) last.set(step.bank, at);
    }
  }
  return last;
}

const live = (uses: readonly StreamUse[], at: number) =>
  uses.filter(({ first, last }) => first <= at && at <= last).length;

function streamUses(steps: readonly ProgramStep[], phases: readonly ProgramPhase[]): StreamUse[] {
  const uses = new Map<number, { first: number; last: number }>();
  for (const [at, { parallel }] of phases.entries()) {
    for (const index of parallel) {
      const step = steps[index]!;
      if (!('stream' in step) || step.stream < 0) continue;
      const use = uses.get(step.stream) ?? { first: at, last: at };
      uses.set(step.stream, { first: Math.min(use.first, at), last: Math.max(use.last, at) });
    }
  }
  return [...uses]
    .map(([stream, use]) => ({ stream, ...use }))
    .sort((a, b) => a.first - b.first || a.stream - b.stream);
}

/** Whether a step is postponed while experts are on their way: what computes them, and nothing else depends on. */
export function isLate(step: ProgramStep, hidden: ReadonlySet<number>): boolean {
  if (step.op === 'quantize') return hidden.has(step.input);
  return step.op === 'expertsUp' || step.op === 'expertsDown';
}

/** Buffers between the two halves of fetched experts. */
export function expertHidden(steps: readonly ProgramStep[]): ReadonlySet<number> {
  return new Set(steps.flatMap((step) => (step.op === 'expertsUp' && step.bank >= 0 ? [step.hidden] : [])));
}
