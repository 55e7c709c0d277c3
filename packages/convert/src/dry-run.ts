/** What a conversion would write; nothing is written. */
import { extname } from 'node:path';
import { crc32 } from 'node:zlib';
import {
  CflowError,
  type Layout,
  type ModelFile,
  openModel,
  PRESETS,
  parameterCount,
  relayoutWriter,
  safetensorsBytes,
} from '@cflow/format';
import { type FileSource, openFileSource } from '@cflow/format/node';
import {
  draftMetadata,
  isModelFile,
  plannedLayout,
  refuseCheckpointOptions,
  versionNotes,
  vocabularyNotes,
} from './convert.js';
import { ggufDraft, isGguf, refuseExportOptions } from './gguf/convert-gguf.js';
import { planExport } from './gguf/export.js';
import { openSource } from './hub/open.js';
import { refuseNotes } from './notes.js';
import {
  type ConvertOptions,
  type ConvertRequest,
  type ConvertResult,
  checkRequest,
  isDirectoryName,
  isExport,
  refuseVerify,
  resolveOptions,
} from './options.js';
import { refuseSwapped } from './swapped.js';
import { checkpointTexts } from './targets/safetensors.js';

/** What a conversion would write. */
export interface DryRunReport extends Pick<ConvertResult, 'model' | 'container' | 'dtype' | 'parameters'> {
  readonly fileBytes: number;
  /** Regions of the layout, tensors of a GGUF file, or files of safetensors. */
  readonly regions: number;
  readonly bytesByKind: Readonly<Record<string, number>>;
  readonly weightsPresent: boolean;
  readonly notes: readonly string[];
}

/** A source may be absent where `model` is a preset, the output too. @throws CflowError as `convert` */
export async function dryRun(request: Partial<ConvertRequest>): Promise<DryRunReport> {
  const { source, output = 'model.cflow' } = request;
  checkRequest({ ...request, source: source ?? '', output });
  if (source !== undefined && request.output !== undefined) await refuseSwapped(source, output);
  if (source !== undefined && (await isModelFile(source))) return ofModel({ ...request, source, output });
  const gguf = source !== undefined && isGguf(source) ? await ggufDraft(source, request.dtype) : undefined;
  if (isExport(output)) {
    throw new CflowError('USAGE', 'safetensors and GGUF are written from a .cflow or .vflow', {
      file: output,
      remedy: 'convert to .cflow first, then that to what you need',
    });
  }
  const dtype = request.dtype ?? gguf?.dtype;
  const options = await resolveOptions({ ...request, ...(dtype && { dtype }), source: source ?? '', output });
  const { config, checkpoint, weights, notes } = gguf ?? (await draft(source, options));
  refuseNotes(notes, options.strict, source ?? options.model);
  const all = [...notes, ...versionNotes(config, options)];
  const layout = plannedLayout(draftMetadata(config, options, checkpoint), options);
  return { ...reportOf(layout, options.dtype), weightsPresent: weights, notes: all };
}

async function draft(source: string | undefined, { model, cache, onRetry, maxHeaderBytes }: ConvertOptions) {
  if (source !== undefined) {
    const checkpoint = await openSource({ source, model, cache, onRetry, maxHeaderBytes, dryRun: true });
    await checkpoint.close();
    const { config, hasWeights } = checkpoint;
    const notes = [...checkpoint.notes, ...vocabularyNotes(checkpoint)];
    return { config, checkpoint, weights: hasWeights, notes };
  }
  const preset = Object.hasOwn(PRESETS, model) ? PRESETS[model] : undefined;
  if (!preset) {
    throw new CflowError('USAGE', 'a dry run needs a source, or a preset by --model', {
      remedy: `presets: ${Object.keys(PRESETS).join(', ')}`,
    });
  }
  return { config: preset, checkpoint: undefined, weights: false, notes: [] };
}

function reportOf(layout: Layout, dtype: ModelFile['dtype']): DryRunReport {
  const bytesByKind: Record<string, number> = {};
  for (const { kind, stream, length } of layout.regions) add(bytesByKind, stream?.kind ?? kind, length);
  return {
    ...{ model: layout.config.name, container: layout.container, dtype },
    parameters: parameterCount(layout.config),
    fileBytes: layout.fileBytes,
    regions: layout.regions.length,
    bytesByKind,
    weightsPresent: true,
    notes: [],
  };
}

function add(sums: Record<string, number>, kind: string, bytes: number): void {
  sums[kind] = (sums[kind] ?? 0) + bytes;
}

/** A .cflow or .vflow, as whatever it can be written as. */
async function ofModel(request: ConvertRequest): Promise<DryRunReport> {
  if (isGguf(request.output)) refuseExportOptions(request);
  else refuseCheckpointOptions(request);
  refuseVerify(request);
  const options = await resolveOptions(request);
  const source = await openFileSource(request.source);
  try {
    const file = await openModel(source, { crc32 });
    if (isGguf(request.output)) return ofGguf(source, file);
    if (isExport(request.output)) return ofSafetensors(file, request.output);
    const { container, formatVersion: version } = options;
    const nowhere = { name: 'nowhere', write: async () => undefined };
    return reportOf(relayoutWriter(nowhere, file, { container, version, crc32 }).layout, file.dtype);
  } finally {
    await source.close();
  }
}

function ofGguf(source: FileSource, file: ModelFile): DryRunReport {
  const { head, tensors, fileBytes, notes } = planExport(file, source.name);
  const bytesByKind: Record<string, number> = { head: head.length };
  for (const { dtype, bytes } of tensors) add(bytesByKind, dtype, bytes);
  const said = Object.values(bytesByKind).reduce((sum, bytes) => sum + bytes, 0);
  if (said < fileBytes) bytesByKind.padding = fileBytes - said;
  const whole = { container: 'gguf', fileBytes, regions: tensors.length, bytesByKind, notes } as const;
  return { ...reportOf(file.layout, file.dtype), ...whole };
}

function ofSafetensors(file: ModelFile, output: string): DryRunReport {
  const texts = isDirectoryName(output) ? Object.entries(checkpointTexts(file)) : [];
  const bytesByKind: Record<string, number> = { weights: safetensorsBytes(file) };
  for (const [name, text] of texts) {
    add(bytesByKind, extname(name) === '.jinja' ? 'template' : 'json', Buffer.byteLength(text));
  }
  const fileBytes = Object.values(bytesByKind).reduce((sum, bytes) => sum + bytes, 0);
  const whole = { container: 'safetensors', fileBytes, regions: 1 + texts.length, bytesByKind } as const;
  return { ...reportOf(file.layout, 'f32'), ...whole };
}
