/** Writes synthetic models directly as .cflow, .vflow or .gguf, in memory of a few stripes. */
import { crc32 } from 'node:zlib';
import { CONVERTER_VERSION } from '@cflow/convert';
import { type GgufTensorPlan, planGguf } from '@cflow/convert/internal/gguf/plan.js';
import { ourRow } from '@cflow/convert/internal/gguf/rope.js';
import { placeholderTokenizer } from '@cflow/convert/internal/gguf/tokenizer-placeholder.js';
import { AtomicFile } from '@cflow/convert/internal/targets/atomic-file.js';
import {
  type ByteSink,
  CflowError,
  type Container,
  DTYPES,
  type Dtype,
  type FormatVersion,
  type ModelConfig,
  ModelWriter,
  parameterCount,
  partStripes,
  type Stream,
  TILE_ROWS,
} from '@cflow/format';
import { checkTarget } from '@cflow/format/node';
import { type ModelSize, modelOf } from './geometry.js';
import { TileWeights } from './tile-weights.js';

export type ModelFormat = Container | 'gguf';
export const MODEL_FORMATS: readonly ModelFormat[] = ['cflow', 'vflow', 'gguf'];

export interface SynthModelOptions extends ModelSize {
  readonly target: string;
  readonly format: ModelFormat;
  /** A geometry name, or a configuration. */
  readonly geometry: string | ModelConfig;
  readonly dtype: Dtype;
  readonly seed: number;
  readonly overwrite?: boolean;
  /** Aborts with CflowError INTERRUPTED; the target is absent. */
  readonly signal?: AbortSignal;
  readonly onProgress?: (done: number, total: number) => void;
}

export interface SynthModelResult {
  readonly target: string;
  readonly format: ModelFormat;
  readonly dtype: Dtype;
  readonly parameters: number;
  readonly layers: number;
  readonly bytes: number;
  readonly seconds: number;
}

/**
 * Writes the model. The target is complete or absent; the same options give the same bytes, and the same weights in
 * every format.
 * @throws CflowError USAGE (geometry), UNSUPPORTED (no GGUF of it), OUTPUT_EXISTS, WRITE_FAILED, INTERRUPTED
 */
export async function synthesizeModel(options: SynthModelOptions): Promise<SynthModelResult> {
  const started = performance.now();
  const { target, format, dtype, overwrite = false } = options;
  const { group, scaleBytes, groupBytes } = DTYPES[dtype];
  const { geometry } = options;
  const config =
    typeof geometry === 'string' ? modelOf(geometry, options, (scaleBytes + groupBytes) / group) : geometry;
  await checkTarget(target, [], overwrite);
  const weights = TileWeights.of(dtype, options.seed);
  const { bytes, write } =
    format === 'gguf' ? ggufJob(config, weights) : containerJob(config, weights, format, options);
  const file = await AtomicFile.create(target, bytes);
  try {
    await write(observed(file, bytes, options));
    await file.commit(overwrite);
  } catch (error) {
    await file.discard();
    throw error;
  }
  const seconds = (performance.now() - started) / 1000;
  const layers = config.layers.length;
  return { target, format, dtype, parameters: parameterCount(config), layers, bytes, seconds };
}

interface Job {
  readonly bytes: number;
  write(sink: ByteSink): Promise<void>;
}

/** Reports progress, and stops between writes. */
function observed(
  sink: ByteSink,
  total: number,
  { signal, onProgress }: Pick<SynthModelOptions, 'signal' | 'onProgress'>,
): ByteSink {
  let done = 0;
  return {
    name: sink.name,
    async write(offset, bytes) {
      if (signal?.aborted) throw new CflowError('INTERRUPTED', 'interrupted; nothing was left at the output');
      await sink.write(offset, bytes);
      done += bytes.length;
      onProgress?.(done, total);
    },
  };
}

function containerJob(
  config: ModelConfig,
  weights: TileWeights,
  container: Container,
  { seed }: SynthModelOptions,
): Job {
  const { dtype } = weights;
  const metadata = {
    config,
    source: { name: `synthetic ${config.name}`, files: [] },
    converter: { version: CONVERTER_VERSION, options: { dtype, seed } },
  };
  const writerTo = (sink: ByteSink) => new ModelWriter(sink, { dtype, container, metadata, crc32 });
  const nowhere = { name: 'nowhere', write: async () => undefined };
  return {
    bytes: writerTo(nowhere).layout.fileBytes,
    async write(sink) {
      const writer = writerTo(sink);
      for (const region of writer.layout.regions) {
        if (region.stream)
          await writer.writeStream(region, streamPieces(region.stream, weights, writer.layout.version));
        else await writer.writeFixed(region);
      }
      await writer.finish();
    },
  };
}

function* streamPieces(stream: Stream, weights: TileWeights, version: FormatVersion): Generator<Uint8Array> {
  for (const part of stream.parts) {
    if (part.kind === 'plain') yield new Uint8Array(weights.plain(part.tensor).buffer);
    else for (const stripe of partStripes(part)) yield weights.stripe(stripe, version);
  }
}

function ggufJob(config: ModelConfig, weights: TileWeights): Job {
  const { head, tensors, fileBytes } = planGguf(config, weights.dtype, placeholderTokenizer(config));
  requireWholeGroups(tensors, weights.dtype);
  return {
    bytes: fileBytes,
    async write(sink) {
      await sink.write(0, head);
      let end = head.length;
      for (const tensor of tensors) {
        const start = head.length + tensor.offset;
        if (start > end) await sink.write(end, new Uint8Array(start - end));
        end = start;
        for (const piece of tensorPieces(tensor, weights)) {
          await sink.write(end, piece);
          end += piece.length;
        }
      }
      if (fileBytes > end) await sink.write(end, new Uint8Array(fileBytes - end));
    },
  };
}

/** Rows must consist of whole groups: the pool has no partial groups. */
function requireWholeGroups(tensors: readonly GgufTensorPlan[], dtype: Dtype): void {
  const ragged = tensors.find((tensor) => tensor.parts[0]?.matrix && tensor.dtype !== dtype);
  if (!ragged) return;
  const { group } = DTYPES[dtype];
  throw new CflowError('UNSUPPORTED', `${ragged.dims[0]} columns are no whole groups of ${group}`, {
    field: ragged.name,
    remedy: 'use --dtype f16 or f32, or another geometry',
  });
}

function* tensorPieces(
  { parts, heads, values }: GgufTensorPlan,
  weights: TileWeights,
): Generator<Uint8Array> {
  if (values) yield new Uint8Array(values.buffer);
  const rowOf = (row: number) => (heads ? ourRow(heads, row) : row);
  for (const tensor of parts) {
    if (!tensor.matrix) {
      const own = weights.plain(tensor);
      yield new Uint8Array((heads ? own.map((_, row) => own[rowOf(row)]!) : own).buffer);
      continue;
    }
    const rows = tensor.shape[0]!;
    for (let first = 0; first < rows; first += TILE_ROWS) {
      yield weights.rows(tensor, first, Math.min(TILE_ROWS, rows - first), rowOf);
    }
  }
}
