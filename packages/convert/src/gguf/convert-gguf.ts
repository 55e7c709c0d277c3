/** cflow-convert with a GGUF file on either side. */
import { basename, extname } from 'node:path';
import { crc32 } from 'node:zlib';
import {
  CflowError,
  type Dtype,
  type Layout,
  type MetadataDraft,
  type ModelConfig,
  ModelWriter,
  openModel,
  parameterCount,
} from '@cflow/format';
import { checkTarget, openFileSource } from '@cflow/format/node';
import { refuseNotes, zeroedNotes } from '../notes.js';
import {
  type ConvertOptions,
  type ConvertRequest,
  type ConvertResult,
  GGUF_EXTENSION,
  resolveOptions,
} from '../options.js';
import { throwIfInterrupted } from '../pipeline/interrupt.js';
import type { CheckpointSource } from '../sources/checkpoint.js';
import { tokenizerNotes } from '../sources/tokenizer-check.js';
import type { AtomicFile } from '../targets/atomic-file.js';
import { exportGguf, planExport } from './export.js';
import { importGguf } from './import.js';
import { type GgufModel, openGguf } from './source.js';
import { typeNotes } from './type-notes.js';

/** What every conversion does alike. */
export interface ConvertTools {
  /** The metadata of the output, checksums left out. */
  draftMetadata(
    config: ModelConfig,
    options: Pick<ConvertOptions, 'dtype' | 'scaleSearch' | 'zeroNonfinite'>,
    source: Pick<CheckpointSource, 'name' | 'files' | 'tokenizer'>,
  ): MetadataDraft;
  /** Says why a file is of version 6 although nobody asked for it. */
  versionNotes(config: ModelConfig, options: Pick<ConvertOptions, 'formatVersion'>): string[];
  /** What `write` returns, once the file has its name; of a failure nothing is left. */
  writeAtomically<T>(
    options: ConvertOptions,
    bytes: number,
    write: (sink: AtomicFile) => Promise<T>,
  ): Promise<T>;
}

/** Whether a path is called as a GGUF is. */
export const isGguf = (path: string): boolean => extname(path).toLowerCase() === GGUF_EXTENSION;

/** The conversion, if source or output is a GGUF file; undefined if neither is. */
export function ggufConversion(
  request: ConvertRequest,
  tools: ConvertTools,
): Promise<ConvertResult> | undefined {
  if (isGguf(request.source)) return fromGguf(request, tools);
  return isGguf(request.output) ? toGguf(request, tools) : undefined;
}

function refuse(request: ConvertRequest, options: readonly (keyof ConvertRequest)[], why: string): void {
  for (const option of options) {
    const value = request[option];
    if (value === undefined || value === false) continue;
    throw new CflowError('USAGE', why, { file: request.source, field: option, value });
  }
}

/** @throws CflowError USAGE for what cannot change a GGUF output */
export function refuseExportOptions(request: ConvertRequest): void {
  refuse(
    request,
    ['model', 'dtype', 'formatVersion', 'scaleSearch', 'zeroNonfinite', 'resume', 'verify'],
    'this option does not apply to a GGUF output: it has the weights of its source, bit by bit',
  );
}

async function toGguf(request: ConvertRequest, tools: ConvertTools): Promise<ConvertResult> {
  const started = performance.now();
  refuseExportOptions(request);
  if (!['.cflow', '.vflow'].includes(extname(request.source))) {
    throw new CflowError('USAGE', 'GGUF is written from a .cflow or .vflow', {
      file: request.source,
      field: 'source',
      remedy: 'convert to .cflow first, then that to .gguf',
    });
  }
  const options = await resolveOptions(request);
  const source = await openFileSource(options.source);
  try {
    const file = await openModel(source, { crc32 });
    await checkTarget(options.output, [options.source], options.overwrite);
    const plan = planExport(file, source.name);
    let done = 0;
    const onProgress = (bytes: number) => {
      throwIfInterrupted(options.signal);
      done += bytes;
      options.onProgress?.(done, source.size);
    };
    await tools.writeAtomically(options, plan.fileBytes, (sink) =>
      exportGguf(source, file, plan, sink, { crc32, onProgress }),
    );
    const { config, dtype } = file;
    const result = resultOf({ ...options, dtype }, config, plan.fileBytes, started);
    return { ...result, container: 'gguf', notes: plan.notes };
  } finally {
    await source.close();
  }
}

async function fromGguf(request: ConvertRequest, tools: ConvertTools): Promise<ConvertResult> {
  const started = performance.now();
  refuse(request, ['model', 'resume'], 'this option applies to a checkpoint, and the source is a GGUF file');
  if (!['.cflow', '.vflow'].includes(extname(request.output))) {
    throw new CflowError('USAGE', 'a GGUF file is converted to .cflow or .vflow', {
      file: request.output,
      field: 'output',
      remedy: 'convert to .cflow first, then that to what you need',
    });
  }
  const source = await openFileSource(request.source);
  try {
    const model = await openGguf(source);
    const options = { ...(await resolveOptions(request)), dtype: request.dtype ?? model.dtype };
    await checkTarget(options.output, [options.source], options.overwrite);
    const { tokenizer } = model.tokenizer;
    const notes = await modelNotes(model, request.dtype);
    refuseNotes(notes, options.strict, options.source);
    const name = basename(options.source);
    const files = [{ name, path: options.source, bytes: source.size }];
    const metadata = tools.draftMetadata(model.config, options, { name, files, tokenizer });
    let zeroed = 0;
    const layout = await tools.writeAtomically(
      options,
      planned(metadata, options).fileBytes,
      async (sink) => {
        const { dtype, container, formatVersion: version } = options;
        const writer = new ModelWriter(sink, { dtype, container, version, metadata, crc32 });
        const onZeroed = (count: number) => {
          zeroed += count;
        };
        const sha256 = await importGguf(model, options.source, writer, { ...options, onZeroed });
        await writer.finish({ ...metadata.source, files: [{ name, bytes: source.size, sha256 }] });
        return writer.layout;
      },
    );
    const result = resultOf(options, model.config, layout.fileBytes, started);
    const versions = tools.versionNotes(model.config, options);
    return { ...result, notes: [...notes, ...versions, ...zeroedNotes(zeroed)] };
  } finally {
    await source.close();
  }
}

async function modelNotes(model: GgufModel, asked: Dtype | undefined): Promise<string[]> {
  const { tokenizer, keyNotes } = model;
  return [
    ...keyNotes,
    ...tokenizer.notes,
    ...(await tokenizerNotes(tokenizer.tokenizer)),
    ...typeNotes(model, asked),
  ];
}

/** What a conversion of the GGUF file would start from; nothing is written. */
export async function ggufDraft(path: string, dtype: Dtype | undefined) {
  const source = await openFileSource(path);
  try {
    const model = await openGguf(source);
    const { config, tokenizer } = model;
    const name = basename(path);
    const files = [{ name, path, bytes: source.size }];
    const checkpoint = { name, files, tokenizer: tokenizer.tokenizer };
    const notes = await modelNotes(model, dtype);
    return { config, dtype: dtype ?? model.dtype, weights: true, checkpoint, notes };
  } finally {
    await source.close();
  }
}

function planned(
  metadata: MetadataDraft,
  { dtype, container, formatVersion: version }: ConvertOptions,
): Layout {
  const nowhere = { name: 'nowhere', write: async () => undefined };
  return new ModelWriter(nowhere, { dtype, container, version, metadata, crc32 }).layout;
}

function resultOf(
  { output, dtype, container, threads, verify }: ConvertOptions,
  config: ModelConfig,
  fileBytes: number,
  started: number,
): ConvertResult {
  const seconds = (performance.now() - started) / 1000;
  const parameters = parameterCount(config);
  return {
    ...{ output, model: config.name, container, dtype, parameters, fileBytes },
    ...{ seconds, threads, verified: verify, notes: [] },
  };
}
