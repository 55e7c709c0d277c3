import { stat } from 'node:fs/promises';
import { basename, dirname, extname, resolve } from 'node:path';
import { crc32 } from 'node:zlib';
import {
  beyondInWords,
  beyondVersion5,
  CflowError,
  exportSafetensors,
  type Layout,
  type MetadataDraft,
  type ModelConfig,
  type ModelFile,
  ModelWriter,
  openModel,
  parameterCount,
  relayout,
  safetensorsBytes,
  verifyModel,
} from '@cflow/format';
import { checkTarget, type FileSource, openFileSource, packageVersion } from '@cflow/format/node';
import { fileText } from '#cli-kit/bytes.js';
import { ggufConversion, isGguf } from './gguf/convert-gguf.js';
import { hubRemedy, isHubName, looksLikeRepository } from './hub/name.js';
import { openSource } from './hub/open.js';
import type { Download } from './hub/options.js';
import { refuseNotes, withNotes, zeroedNotes } from './notes.js';
import {
  type ConvertOptions,
  type ConvertRequest,
  type ConvertResult,
  checkRequest,
  containerOf,
  EXPORT_EXTENSION,
  isDirectoryName,
  isExport,
  refuseVerify,
  resolveOptions,
} from './options.js';
import { DelayedMoESource } from './pipeline/delayed-moe.js';
import { throwIfInterrupted } from './pipeline/interrupt.js';
import { runPipeline } from './pipeline/pipeline.js';
import { conversionFacts } from './resume/facts.js';
import { ResumableFile } from './resume/file.js';
import type { CheckpointSource } from './sources/checkpoint.js';
import { refuseSwapped } from './swapped.js';
import { AtomicFile, checkDirectory, checkName, checkSpace } from './targets/atomic-file.js';
import { removeOrphans } from './targets/orphans.js';
import { checkDirectoryTarget, type DirectoryExportOptions, exportDirectory } from './targets/safetensors.js';

/** What metadata says of the converter. */
export const CONVERTER_VERSION = packageVersion(import.meta.url);

/** A sink that only the layout is wanted of. */
const NO_SINK = { name: 'nowhere', write: async () => undefined };

/** What the metadata will say, hashes of the source files still to come. Same input and options, same bytes. */
export function draftMetadata(
  config: ModelConfig,
  options: Pick<ConvertOptions, 'dtype' | 'scaleSearch' | 'zeroNonfinite'>,
  source?: Pick<CheckpointSource, 'name' | 'files' | 'tokenizer'> &
    Partial<Pick<CheckpointSource, 'generation'>>,
): MetadataDraft {
  const files = source?.files.map(({ name, bytes }) => ({ name, bytes, sha256: '0'.repeat(64) })) ?? [];
  return {
    config,
    ...(source?.tokenizer ? { tokenizer: source.tokenizer } : {}),
    ...(source?.generation ? { generation: source.generation } : {}),
    source: { name: source?.name ?? config.name, files },
    converter: {
      version: CONVERTER_VERSION,
      options: {
        dtype: options.dtype,
        ...(options.dtype === 'q4_0' ? { scaleSearch: options.scaleSearch } : {}),
        ...(options.zeroNonfinite ? { allowNonfinite: 'zero' } : {}),
      },
    },
  };
}

/** The layout that a conversion would write; nothing is written. */
export function plannedLayout(
  draft: MetadataDraft,
  { dtype, container, formatVersion: version }: PlanOptions,
): Layout {
  return new ModelWriter(NO_SINK, { dtype, container, version, metadata: draft, crc32 }).layout;
}

/** What a layout depends on besides the metadata. */
export type PlanOptions = Pick<ConvertOptions, 'dtype' | 'container' | 'formatVersion'>;

/** Says why a file is of version 6 although nobody asked for it. */
export function versionNotes(
  config: ModelConfig,
  { formatVersion }: Pick<ConvertOptions, 'formatVersion'>,
): string[] {
  const beyond = formatVersion === undefined ? beyondVersion5(config) : undefined;
  return beyond ? [`written as version 6 of the format: ${beyondInWords(beyond)}`] : [];
}

/**
 * Converts a checkpoint directory or a GGUF file, or lays a .cflow or .vflow out anew. The output is complete or absent.
 * @throws CflowError of every kind that ERRORS lists
 */
export async function convert(request: ConvertRequest): Promise<ConvertResult> {
  checkRequest(request);
  await checkOutput(request);
  const removed = await removeOrphans(resolve(request.output));
  const result = await converted(request).catch((error: unknown) => {
    throw withNotes(error, removed);
  });
  return { ...result, notes: [...removed, ...result.notes] };
}

/** Before anything is read or fetched: whether the output may be written at all. @throws CflowError USAGE, OUTPUT_EXISTS, WRITE_FAILED */
async function checkOutput({ source, output, overwrite = false }: ConvertRequest): Promise<void> {
  await refuseSwapped(source, output);
  containerOf(output);
  checkName(output);
  if (isDirectoryName(output)) await checkDirectoryTarget(resolve(output));
  // Of sources on this machine the inputs are known before anything is read of them; `checkTarget` follows then.
  else if (isHubName(source)) await checkTarget(output, [], overwrite);
  await checkDirectory(resolve(output));
}

async function converted(request: ConvertRequest): Promise<ConvertResult> {
  const gguf = ggufConversion(request, { draftMetadata, versionNotes, writeAtomically });
  if (gguf) return gguf;
  const options = await resolveOptions(request);
  refuseVerify(options);
  if (await isModelFile(options.source)) {
    refuseCheckpointOptions(request);
    return convertModel(options);
  }
  if (isExport(options.output)) {
    throw new CflowError('USAGE', 'safetensors are written from a .cflow or .vflow', {
      file: options.output,
      remedy: 'convert to .cflow first, then that to what you need',
    });
  }
  return convertCheckpoint(options);
}

/** Whether the source is a file, and no GGUF. @throws CflowError NOT_READABLE */
export async function isModelFile(source: string): Promise<boolean> {
  return !isHubName(source) && !isGguf(source) && (await isPlainFile(source));
}

async function isPlainFile(path: string): Promise<boolean> {
  const stats = await stat(path).catch((cause: NodeJS.ErrnoException) => {
    const remedy = cause.code === 'ENOENT' && looksLikeRepository(path) ? hubRemedy(path) : undefined;
    throw new CflowError('NOT_READABLE', `cannot open: ${cause.code}`, { file: path, cause, remedy });
  });
  if (stats.isFile() && extname(path) === EXPORT_EXTENSION) {
    throw new CflowError('USAGE', 'a safetensors file alone says nothing of the model', {
      file: path,
      remedy: `convert its directory, which has config.json too: cflow-convert ${dirname(path)} MODEL.cflow`,
    });
  }
  return stats.isFile();
}

/** What decides the bytes of a conversion cannot change those of a finished file; silence would promise that it did. */
export function refuseCheckpointOptions(request: ConvertRequest): void {
  for (const option of ['model', 'dtype', 'scaleSearch', 'zeroNonfinite', 'resume'] as const) {
    if (request[option] === undefined) continue;
    throw new CflowError('USAGE', `${option} applies to a checkpoint, and the source is a file`, {
      file: request.source,
      field: option,
      value: request[option],
      remedy: 'a .cflow or .vflow keeps its weights as they are; convert the checkpoint again',
    });
  }
}

async function convertCheckpoint(options: ConvertOptions): Promise<ConvertResult> {
  const started = performance.now();
  const beforeDownload = (source: CheckpointSource, download: Download) =>
    checkRoom(options, source, download);
  const source = await openSource({ ...options, beforeDownload });
  try {
    const known = [...source.notes, ...vocabularyNotes(source)];
    refuseNotes(known, options.strict, options.source);
    const versions = versionNotes(source.config, options);
    const local = source.files.filter(({ remote }) => !remote).map(({ path }) => path);
    await checkTarget(options.output, local, options.overwrite);
    const metadata = draftMetadata(source.config, options, source);
    const planned = plannedLayout(metadata, options);
    const bytes = planned.fileBytes;
    const facts = await conversionFacts(options, metadata, source.files, planned);
    const sink = await ResumableFile.open(options.output, { facts, bytes, resume: options.resume, crc32 });
    let zeroed = 0;
    const layout = await completed(sink, options, async () => {
      const { dtype, container } = options;
      const { version } = planned;
      const writer = new ModelWriter(sink, { dtype, container, version, metadata, crc32: sink.crc32 });
      const readAhead = local.length < source.files.length ? REMOTE_READS : 1;
      const onZeroed = (count: number) => {
        zeroed += count;
      };
      const run = { ...options, resume: sink, readAhead, onZeroed };
      const sums = await runPipeline(new DelayedMoESource(source), writer, local, run);
      await writer.finish({ ...metadata.source, files: hashedFiles(source.files, sums) });
      refuseNotes(zeroedNotes(zeroed), options.strict, options.source);
      return writer.layout;
    });
    const notes = [...known, ...versions, ...zeroedNotes(zeroed), ...resumeNotes(sink, options)];
    return resultOf(options, layout, started, notes);
  } finally {
    await source.close();
  }
}

/** @throws CflowError WRITE_FAILED unless there is room for the output, and for the download where it goes to the same disk */
async function checkRoom(
  options: ConvertOptions,
  source: CheckpointSource,
  { directory, bytes }: Download,
): Promise<void> {
  const { fileBytes } = plannedLayout(draftMetadata(source.config, options, source), options);
  const [cache, output] = await Promise.all([deviceOf(directory), deviceOf(dirname(options.output))]);
  await checkSpace(dirname(options.output), options.output, fileBytes + (cache === output ? bytes : 0));
}

/** The device that a path lies on, or will once it exists. */
async function deviceOf(path: string): Promise<number> {
  const full = resolve(path);
  const stats = await stat(full).catch(() => undefined);
  return stats?.dev ?? deviceOf(dirname(full));
}

/** Steps whose weights are fetched at the same time: enough to hide the way to a server. */
const REMOTE_READS = 8;

/** `sums`: of the files on this machine, in order. @throws CflowError VERIFY_FAILED if one is not what was claimed */
function hashedFiles(files: CheckpointSource['files'], sums: readonly string[]) {
  const computed = sums[Symbol.iterator]();
  return files.map(({ name, path, bytes, sha256, remote }) => {
    const actual = remote ? sha256! : computed.next().value!;
    if (sha256 === undefined || sha256 === actual) return { name, bytes, sha256: actual };
    throw new CflowError('VERIFY_FAILED', `SHA-256 is ${actual}, the Hub says ${sha256}`, {
      file: path,
      remedy: 'the cached copy is damaged; delete it and convert again',
    });
  });
}

/** Bytes; less is gone before anyone would miss it. */
const WORTH_A_NOTE = 100_000;

function resumeNotes({ resumedAt, discarded }: ResumableFile, { resume }: ConvertOptions): string[] {
  if (resumedAt > 0)
    return [`continued an interrupted conversion: ${fileText(resumedAt)} were already written`];
  if (discarded < WORTH_A_NOTE) return [];
  const why = resume ? 'its journal does not cover them' : '--resume would have continued it';
  return [`removed ${fileText(discarded)} of an interrupted conversion: ${why}`];
}

/** What `write` returns, once the file has its name. */
async function completed<T>(
  sink: ResumableFile,
  options: ConvertOptions,
  write: () => Promise<T>,
): Promise<T> {
  try {
    const written = await write();
    if (options.verify) await verifyFile(sink.temporary);
    throwIfInterrupted(options.signal);
    await sink.commit(options.overwrite);
    return written;
  } catch (error) {
    throw await sink.leave(error);
  }
}

export function vocabularyNotes({
  tokenizer,
  config,
}: Pick<CheckpointSource, 'tokenizer' | 'config'>): string[] {
  if (!tokenizer || tokenizer.vocabSize === config.vocabSize) return [];
  return [
    `the tokenizer has ${tokenizer.vocabSize} entries, the embedding ${config.vocabSize} rows; surplus rows are never generated`,
  ];
}

/** Writes a .cflow or .vflow anew in the other container, or as safetensors. */
async function convertModel(options: ConvertOptions): Promise<ConvertResult> {
  const started = performance.now();
  const source = await openFileSource(options.source);
  try {
    const file = await openModel(source, { crc32 });
    const target = { ...options, dtype: file.dtype };
    let done = 0;
    const onProgress = (bytes: number) => {
      throwIfInterrupted(options.signal);
      done += bytes;
      options.onProgress?.(done, source.size);
    };
    if (isExport(options.output)) {
      const fileBytes = await exportModel({ ...target, onProgress }, source, file);
      const result = resultOf(target, file.layout, started, []);
      return { ...result, container: 'safetensors', dtype: 'f32', fileBytes };
    }
    await checkTarget(options.output, [options.source], options.overwrite);
    const layout = await writeAtomically(target, source.size, (sink) =>
      relayout(source, file, sink, {
        container: options.container,
        version: options.formatVersion,
        crc32,
        onProgress,
      }),
    );
    return resultOf(target, layout, started, []);
  } finally {
    await source.close();
  }
}

/** As one .safetensors, or a checkpoint directory: F32, canonical names. Returns the bytes written. */
async function exportModel(
  options: Omit<ConvertOptions, 'onProgress'> & DirectoryExportOptions,
  source: FileSource,
  file: ModelFile,
): Promise<number> {
  const { output, onProgress } = options;
  if (isDirectoryName(output)) return exportDirectory(source, file, options);
  await checkTarget(output, [options.source], options.overwrite);
  return writeAtomically(options, safetensorsBytes(file), (sink) =>
    exportSafetensors(source, file, sink, { crc32, onProgress }),
  );
}

/** What `write` returns, once the file has its name; of a failure nothing is left. */
async function writeAtomically<T>(
  options: Pick<ConvertOptions, 'output' | 'verify' | 'signal' | 'overwrite'>,
  bytes: number,
  write: (sink: AtomicFile) => Promise<T>,
): Promise<T> {
  const sink = await AtomicFile.create(options.output, bytes);
  try {
    const written = await write(sink);
    if (options.verify) await verifyFile(sink.temporary);
    throwIfInterrupted(options.signal);
    await sink.commit(options.overwrite);
    return written;
  } catch (error) {
    await sink.discard();
    throw error;
  }
}

async function verifyFile(path: string): Promise<void> {
  const source = await openFileSource(path);
  try {
    for await (const fault of verifyModel(source, await openModel(source, { crc32 }), { crc32 })) {
      throw new CflowError('VERIFY_FAILED', fault.problem, {
        file: path,
        field: fault.region,
        offset: fault.offset,
      });
    }
  } finally {
    await source.close();
  }
}

function resultOf(
  { output, dtype, container, threads, verify }: ConvertOptions,
  { config, fileBytes }: Layout,
  started: number,
  notes: readonly string[],
): ConvertResult {
  return {
    output,
    model: config.name || basename(output),
    container,
    dtype,
    parameters: parameterCount(config),
    fileBytes,
    seconds: (performance.now() - started) / 1000,
    threads,
    verified: verify,
    notes,
  };
}
