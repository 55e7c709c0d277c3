import { extname, sep } from 'node:path';
import {
  CflowError,
  type Container,
  DTYPE_NAMES,
  type Dtype,
  FORMAT_VERSIONS,
  type FormatVersion,
} from '@cflow/format';
import {
  abortSignal,
  type Checks,
  callback,
  check,
  checkOptions,
  choice,
  flag,
  text,
  whole,
} from '@cflow/format/node';
import { threadBudget } from '@cflow/runtime-native';
import { CONVERT_DEFAULTS, MOST_HEADER_BYTES, MOST_THREADS } from './defaults.js';
import type { Retry } from './hub/client.js';

/** What a conversion is asked to do; everything that changes the bytes goes into the metadata. */
export interface ConvertOptions {
  readonly source: string;
  readonly output: string;
  /** `auto`, or a preset that the checkpoint must match. */
  readonly model: string;
  readonly dtype: Dtype;
  readonly container: Container;
  /** Version of the format. Absent = that of a .cflow or .vflow that is laid out anew, else 5 where it holds the model, and 6. */
  readonly formatVersion?: FormatVersion | undefined;
  readonly scaleSearch: boolean;
  readonly zeroNonfinite: boolean;
  readonly overwrite: boolean;
  readonly verify: boolean;
  /** Go on with what an interrupted conversion to the same output left, if it was the same conversion. */
  readonly resume: boolean;
  /** false: weights from the Hub pass through without a copy in its cache. */
  readonly cache: boolean;
  /** Whatever would be a note is an error. */
  readonly strict: boolean;
  /** Bytes that the header of a safetensors file may have. */
  readonly maxHeaderBytes?: number | undefined;
  readonly threads: number;
  readonly signal?: AbortSignal;
  /** Bytes of the output written so far, of how many. */
  readonly onProgress?: (done: number, total: number) => void;
  /** Bytes of the checkpoint that are in the cache so far, of how many; before any of the output. */
  readonly onDownload?: (done: number, total: number) => void;
  /** A request to the Hub failed and is sent again after a while. */
  readonly onRetry?: (retry: Retry) => void;
}

/** What a conversion wrote. */
export interface ConvertResult {
  readonly output: string;
  readonly model: string;
  readonly container: Container | 'safetensors' | 'gguf';
  readonly dtype: Dtype;
  readonly parameters: number;
  readonly fileBytes: number;
  readonly seconds: number;
  readonly threads: number;
  readonly verified: boolean;
  /** What a user should know: surplus rows of the embedding, what was continued or removed. */
  readonly notes: readonly string[];
}

/** What a caller must say; the rest has defaults. */
export type ConvertRequest = Pick<ConvertOptions, 'source' | 'output'> & Partial<ConvertOptions>;

const CONTAINERS: Readonly<Record<string, Container>> = { '.cflow': 'cflow', '.vflow': 'vflow' };

const CONVERT_CHECKS: Checks<ConvertOptions> = {
  source: text,
  output: text,
  model: text,
  dtype: choice(DTYPE_NAMES),
  container: choice(Object.values(CONTAINERS)),
  formatVersion: whole(FORMAT_VERSIONS[0], FORMAT_VERSIONS.at(-1)!),
  scaleSearch: flag,
  zeroNonfinite: flag,
  overwrite: flag,
  verify: flag,
  resume: flag,
  cache: flag,
  strict: flag,
  maxHeaderBytes: whole(1, MOST_HEADER_BYTES),
  threads: whole(1, MOST_THREADS),
  signal: abortSignal,
  onProgress: callback,
  onDownload: callback,
  onRetry: callback,
};

/** Types do not bind who calls from JavaScript. @throws CflowError USAGE for an option that is not what it may be */
export function checkRequest(request: ConvertRequest): void {
  checkOptions(request, CONVERT_CHECKS);
  for (const name of ['source', 'output'] as const) check(name, request[name], text);
}

/** Fills in what a request leaves open. */
export async function resolveOptions(request: ConvertRequest): Promise<ConvertOptions> {
  const threads = request.threads ?? (await threadBudget()).threads;
  // Looked at in any case: a name that asks for nothing known is an error.
  const named = containerOf(request.output);
  const container = request.container ?? named ?? 'cflow';
  return { ...CONVERT_DEFAULTS, ...request, threads, container };
}

/** Outputs so called are safetensors. */
export const EXPORT_EXTENSION = '.safetensors';
/** Inputs and outputs so called are GGUF. */
export const GGUF_EXTENSION = '.gguf';

/** Whether an output's name asks for a checkpoint directory: it has no extension, or a slash at its end. */
export function isDirectoryName(output: string): boolean {
  return output !== '' && (output.endsWith('/') || output.endsWith(sep) || extname(output) === '');
}

/** Whether a file so called may be an output. */
export function isWritable(extension: string): boolean {
  return [...Object.keys(CONTAINERS), EXPORT_EXTENSION, GGUF_EXTENSION].includes(extension);
}

/** Whether an output's name asks for something other than a container. */
export function isExport(output: string): boolean {
  return isDirectoryName(output) || [EXPORT_EXTENSION, GGUF_EXTENSION].includes(extname(output));
}

/** The container that an output's name asks for; undefined for an export. @throws CflowError USAGE for other names */
export function containerOf(output: string): Container | undefined {
  if (isExport(output)) return undefined;
  const extension = extname(output);
  if (Object.hasOwn(CONTAINERS, extension)) return CONTAINERS[extension];
  throw new CflowError('USAGE', `the output ends in "${extension}"`, {
    file: output,
    remedy:
      'use .cflow or .vflow; from a .cflow or .vflow also .safetensors, .gguf, or a directory with a slash at its end',
  });
}

/** @throws CflowError USAGE where an export is to be verified: only containers have checksums */
export function refuseVerify({
  output,
  verify,
}: Pick<ConvertOptions, 'output'> & Partial<ConvertOptions>): void {
  if (!verify || !isExport(output)) return;
  throw new CflowError('USAGE', 'verify checks a .cflow or .vflow', { file: output, field: 'verify' });
}
