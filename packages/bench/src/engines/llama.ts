/**
 * llama.cpp through node-llama-cpp with its prebuilt CPU backend. node-llama-cpp is not a dependency of this package;
 * install it to compare.
 */

import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { CflowError } from '@cflow/format';

export const PEER = 'node-llama-cpp';
export const PEER_VERSION = '3.22.1';

/** The part of the node-llama-cpp API used here. */
interface Peer {
  getLlama(options: Record<string, unknown>): Promise<Llama>;
}
interface Llama {
  readonly systemInfo: string;
  readonly llamaCppRelease: { readonly release: string };
  loadModel(options: Record<string, unknown>): Promise<LlamaModel>;
  dispose(): Promise<void>;
}
interface LlamaModel {
  readonly fileInfo: { readonly metadata: Record<string, Record<string, unknown>> };
  createContext(options: Record<string, unknown>): Promise<{ getSequence(): Sequence }>;
}
interface Evaluated {
  readonly next: { readonly token?: number; readonly logits?: ReadonlyMap<number, number> };
}
export interface Sequence {
  evaluate(ids: number[], options: Record<string, unknown>): AsyncGenerator<number, void, void>;
  clearHistory(): Promise<void>;
  controlledEvaluate(input: readonly unknown[]): Promise<(Evaluated | undefined)[]>;
}

/**
 * Loads node-llama-cpp from the packages of this project or of the current directory.
 * @throws CflowError UNSUPPORTED with the command that installs it
 */
export async function loadPeer(
  folders: readonly string[] = [import.meta.dirname, process.cwd()],
): Promise<Peer> {
  for (const folder of folders) {
    const found = resolveFrom(folder);
    if (found) return (await import(pathToFileURL(found).href)) as Peer;
  }
  throw new CflowError('UNSUPPORTED', `the comparison with llama.cpp needs ${PEER}, which is not installed`, {
    field: 'gguf',
    remedy: `npm install --no-save ${PEER}@${PEER_VERSION}`,
  });
}

/** Entry of node-llama-cpp: an ES module, which `require.resolve` finds only by its folder. */
function resolveFrom(start: string): string | undefined {
  const { resolve } = createRequire(join(start, 'x.js'));
  for (const folder of resolve.paths(PEER) ?? []) {
    try {
      return resolve(join(folder, PEER, 'dist', 'index.js'));
    } catch {}
  }
  return undefined;
}

const seconds = (from: number) => (performance.now() - from) / 1000;
interface LlamaOptions {
  readonly file: string;
  readonly threads: number;
  /** Positions. */
  readonly contextSize: number;
}

/** A model with a context of one sequence. */
interface OpenedLlama {
  readonly openSeconds: number;
  /** Release and CPU features. */
  readonly backend: string;
  readonly model: LlamaModel;
  readonly sequence: Sequence;
}

/** Loads a prebuilt backend for this CPU; never builds or downloads. */
export async function withLlama<T>(
  { file, threads, contextSize }: LlamaOptions,
  work: (opened: OpenedLlama) => Promise<T>,
): Promise<T> {
  const { getLlama } = await loadPeer();
  const llama = await getLlama({
    gpu: false,
    build: 'never',
    skipDownload: true,
    logLevel: 'error',
    maxThreads: threads,
  });
  try {
    const start = performance.now();
    const model = await llama.loadModel({ modelPath: file }).catch((cause: unknown) => {
      const why = cause instanceof Error ? cause.message : String(cause);
      throw new CflowError('FORMAT_INVALID', `llama.cpp cannot read it: ${why}`, {
        file,
        remedy: 'name a complete GGUF of a supported architecture',
        cause,
      });
    });
    const context = await model.createContext({
      sequences: 1,
      contextSize,
      batchSize: 512,
      threads: { ideal: threads, min: threads },
    });
    const sequence = context.getSequence();
    const openSeconds = seconds(start);
    const backend = `llama.cpp ${llama.llamaCppRelease.release}: ${features(llama.systemInfo)}`;
    return await work({ openSeconds, backend, model, sequence });
  } finally {
    await llama.dispose();
  }
}

export function vocabSizeOf({ fileInfo }: LlamaModel): number {
  const { metadata } = fileInfo;
  const architecture = String(metadata.general?.architecture);
  return Number(metadata[architecture]?.vocab_size ?? 32_000);
}

/** `AVX2 = 1 | LLAMAFILE = 1 | …` as a list of enabled features. */
function features(systemInfo: string): string {
  return [...systemInfo.matchAll(/(\w+) = 1/g)].map(([, name]) => name).join(' ');
}

const WANTED = { generateNext: { token: true, options: { temperature: 0 } } };

/** Appends `ids`; resolves to the most likely token after each. */
export async function choices(
  sequence: Pick<Sequence, 'controlledEvaluate'>,
  ids: readonly number[],
): Promise<number[]> {
  const results = await sequence.controlledEvaluate(ids.map((id) => [id, WANTED]));
  return results.map((result) => result?.next.token ?? -1);
}

/** Each position has a map of all logits: consume it at once. */
const SLICE = 64;
/** Raw logits: node-llama-cpp applies sampling options first, so pass none. */
const LOGITS = { generateNext: { logits: true, options: { temperature: 1, topK: 0, topP: 1, minP: 0 } } };

/** Appends `ids`; `keep` gets the logits after each, by token. */
export async function logitsAfter(
  sequence: Pick<Sequence, 'controlledEvaluate'>,
  ids: readonly number[],
  keep: (logits: Float32Array) => void,
): Promise<void> {
  for (let at = 0; at < ids.length; at += SLICE) {
    const slice = ids.slice(at, at + SLICE);
    for (const result of await sequence.controlledEvaluate(slice.map((id) => [id, LOGITS]))) {
      const logits = new Float32Array(result!.next.logits!.size);
      for (const [token, logit] of result!.next.logits!) logits[token] = logit;
      keep(logits);
    }
  }
}

/** Overrides the function that selects the repacking buffer type, by its mangled C++ name; returns none. */
const SOURCE = 'void *_Z35ggml_backend_cpu_repack_buffer_typev(void) { return 0; }\n';

/**
 * Builds a shared object to preload before llama.cpp's own. Repacked weights are anonymous memory, so a cap below the
 * model size kills the process; without repacking they stay in the page cache.
 * @returns undefined without a C compiler
 */
export async function noRepackLibrary(folder: string, compiler = 'cc'): Promise<string | undefined> {
  const source = join(folder, 'no-repack.c');
  const library = join(folder, 'no-repack.so');
  await writeFile(source, SOURCE);
  return promisify(execFile)(compiler, ['-shared', '-fPIC', '-o', library, source]).then(
    () => library,
    () => undefined,
  );
}
