/**
 * Routing traces: NDJSON, a header line, then one line a token, `[position, experts, experts, …]` with the experts that
 * each layer chose, in the order of the header's layers. Position 0 begins a sequence.
 */
import { type FileHandle, open, rename, rm } from 'node:fs/promises';
import { CflowError, type ModelConfig } from '@cflow/format';
import { checkTarget, errno } from '@cflow/format/node';
import type { NativeRouting } from '../native/addon.js';

/** `format` of the first line. */
export const TRACE_FORMAT = 'cflow-trace/1';

/** A layer with experts. */
export interface TraceLayer {
  readonly layer: number;
  readonly experts: number;
  readonly topK: number;
}

/** The first line of a trace. */
export interface TraceHeader {
  readonly format: typeof TRACE_FORMAT;
  readonly model: string;
  /** Layers between a routing and the addition of its experts. */
  readonly expertDelay: number;
  readonly layers: readonly TraceLayer[];
}

/** The experts that all layers chose for one token. */
export interface TraceToken {
  readonly position: number;
  /** Of each layer of the header. */
  readonly experts: readonly (readonly number[])[];
}

/** A whole trace. */
export interface Trace {
  readonly header: TraceHeader;
  readonly tokens: readonly TraceToken[];
}

/** The header of a model's trace. */
export function traceHeader({ name, expertDelay, layers }: ModelConfig): TraceHeader {
  const routed = layers.flatMap(({ experts }, layer) =>
    experts ? [{ layer, experts: experts.count, topK: experts.topK }] : [],
  );
  return { format: TRACE_FORMAT, model: name, expertDelay, layers: routed };
}

/**
 * Recorded routings (`Engine.takeRoutings`), token by token.
 * @throws CflowError INTERNAL if layers chose for different tokens
 */
export function traceTokens({ layers }: TraceHeader, routings: readonly NativeRouting[]): TraceToken[] {
  const byLayer = layers.map((_, bank) =>
    routings.filter((routing) => routing.bank === bank).flatMap(choices),
  );
  const [first = []] = byLayer;
  return first.map(({ position }, token) => ({
    position,
    experts: byLayer.map((choice) => {
      const own = choice[token];
      if (own?.position === position && choice.length === first.length) return own.experts;
      throw new CflowError('INTERNAL', `layers chose for different tokens at position ${position}`);
    }),
  }));
}

function choices({ position, topK, experts }: NativeRouting) {
  return Array.from({ length: experts.length / topK }, (_, token) => ({
    position: position + token,
    experts: [...experts.subarray(token * topK, (token + 1) * topK)],
  }));
}

/** Writes a trace to a temporary file beside the target and renames it when complete. */
export class TraceFile {
  readonly #path: string;
  readonly #partial: string;
  readonly #handle: FileHandle;

  private constructor(path: string, partial: string, handle: FileHandle) {
    this.#path = path;
    this.#partial = partial;
    this.#handle = handle;
  }

  /**
   * @param inputs whose place it may not take
   * @throws CflowError OUTPUT_EXISTS, and WRITE_FAILED where a file of this name cannot be made
   */
  static async create(path: string, inputs: readonly string[] = []): Promise<TraceFile> {
    await checkTarget(path, inputs, true);
    const partial = `${path}.${process.pid}.partial`;
    const handle = await open(partial, 'w').catch((cause: unknown) => {
      throw unwritten(path, cause);
    });
    return new TraceFile(path, partial, handle);
  }

  /**
   * Writes what an engine recorded, in place of an earlier file.
   * @throws CflowError WRITE_FAILED, and as `traceTokens`
   */
  async finish(header: TraceHeader, routings: readonly NativeRouting[]): Promise<void> {
    const tokens = traceTokens(header, routings).map(({ position, experts }) => [position, ...experts]);
    const text = [header, ...tokens].map((line) => `${JSON.stringify(line)}\n`).join('');
    try {
      await this.#handle.writeFile(text);
      await this.#handle.close();
      await rename(this.#partial, this.#path);
    } catch (cause) {
      throw unwritten(this.#path, cause);
    }
  }

  /** Removes the temporary file unless `finish` succeeded; safe to call at any time. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#handle.close().catch(() => undefined);
    await rm(this.#partial, { force: true });
  }
}

function unwritten(file: string, cause: unknown): CflowError {
  return new CflowError('WRITE_FAILED', `cannot write: ${errno(cause)}`, { file, cause });
}

/**
 * Writes a trace, in place of an earlier file.
 * @throws CflowError OUTPUT_EXISTS, WRITE_FAILED, and as `traceTokens`
 */
export async function writeTrace(
  path: string,
  header: TraceHeader,
  routings: readonly NativeRouting[],
): Promise<void> {
  await using file = await TraceFile.create(path);
  await file.finish(header, routings);
}

/** Checks the first bytes before reading: a model given by mistake has gigabytes. */
async function readWhole(path: string): Promise<string> {
  const begin = Buffer.alloc(2);
  await using file = await open(path);
  await file.read(begin, 0, begin.length, 0);
  if (begin.toString('latin1') !== '{"') throw invalid(path, 1, `no header of ${TRACE_FORMAT}`);
  return file.readFile('utf8');
}

/**
 * Reads a trace.
 * @throws CflowError NOT_READABLE, FORMAT_INVALID with the line that is wrong
 */
export async function readTrace(path: string): Promise<Trace> {
  const text = await readWhole(path).catch((cause: unknown) => {
    if (cause instanceof CflowError) throw cause;
    throw new CflowError('NOT_READABLE', `cannot open: ${errno(cause)}`, { file: path, cause });
  });
  const [first = '', ...rest] = text.trimEnd().split('\n');
  const header = parsed(path, first, 1);
  if (!isHeader(header)) throw invalid(path, 1, `no header of ${TRACE_FORMAT}`);
  const tokens = rest.map((line, i) => {
    const token = parsed(path, line, i + 2);
    if (isToken(token, header)) return { position: token[0], experts: token.slice(1) as number[][] };
    throw invalid(path, i + 2, `no position with the experts of ${header.layers.length} layers`);
  });
  return { header, tokens };
}

function parsed(path: string, line: string, number: number): unknown {
  try {
    return JSON.parse(line);
  } catch {
    throw invalid(path, number, 'not JSON');
  }
}

function invalid(file: string, line: number, problem: string): CflowError {
  const remedy = 'record it again with cflow-run --trace';
  return new CflowError('FORMAT_INVALID', `line ${line}: ${problem}`, {
    file,
    field: `line ${line}`,
    remedy,
  });
}

const whole = (value: unknown): value is number => Number.isInteger(value) && Number(value) >= 0;

function isHeader(value: unknown): value is TraceHeader {
  const { format, model, expertDelay, layers } = (value ?? {}) as Partial<Record<keyof TraceHeader, unknown>>;
  if (format !== TRACE_FORMAT || typeof model !== 'string' || !whole(expertDelay)) return false;
  return Array.isArray(layers) && layers.length > 0 && layers.every(isLayer);
}

function isLayer(value: unknown): value is TraceLayer {
  const { layer, experts, topK } = (value ?? {}) as Partial<Record<keyof TraceLayer, unknown>>;
  return whole(layer) && whole(experts) && whole(topK) && topK > 0 && topK <= experts;
}

function isToken(value: unknown, { layers }: TraceHeader): value is [number, ...number[][]] {
  if (!Array.isArray(value) || value.length !== layers.length + 1 || !whole(value[0])) return false;
  return layers.every(({ experts, topK }, i) => {
    const chosen: unknown = value[i + 1];
    return Array.isArray(chosen) && chosen.length === topK && chosen.every((id) => whole(id) && id < experts);
  });
}
