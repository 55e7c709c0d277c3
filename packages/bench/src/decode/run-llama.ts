/**
 * One measurement of llama.cpp, through node-llama-cpp with its prebuilt CPU backend: the same order of work as
 * run-cflow. node-llama-cpp is no dependency of ours; whoever compares installs it.
 */
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { CflowError } from '@cflow/format';
import { peakBytes } from '../harness/peak-memory.js';
import { type DecodeJob, type DecodeRun, type Lengths, promptIds } from './decode-job.js';

export const PEER = 'node-llama-cpp';
export const PEER_VERSION = '3.22.1';
const PROMPT = 4;

/** What is used of node-llama-cpp. */
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
interface Sequence {
  evaluate(ids: number[], options: Record<string, unknown>): AsyncGenerator<number, void, void>;
  clearHistory(): Promise<void>;
  controlledEvaluate(input: readonly unknown[]): Promise<(Evaluated | undefined)[]>;
}

/**
 * The peer's module, from the packages of this project or of the current directory.
 * @throws CflowError UNSUPPORTED with the command that installs it
 */
export async function loadPeer(
  folders: readonly string[] = [import.meta.dirname, process.cwd()],
): Promise<Peer> {
  for (const folder of folders) {
    const found = resolveFrom(folder);
    if (found) return (await import(pathToFileURL(found).href)) as Peer;
  }
  throw new CflowError('UNSUPPORTED', `llama.cpp is measured through ${PEER}, which is not installed`, {
    field: 'gguf',
    remedy: `npm install --no-save ${PEER}@${PEER_VERSION}`,
  });
}

/** The entry of the peer; it is an ES module, which `resolve` of CommonJS only finds by its folders. */
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
/** Greedy; end-of-text tokens are tokens like others here. */
const GREEDY = { temperature: 0, yieldEogToken: true };

/** One measurement of decoding and prefill. */
export function runLlama({ file, lengths, threads }: DecodeJob & { kind: 'llama.cpp' }): Promise<DecodeRun> {
  return withLlama({ file, threads, contextSize: contextSizeOf(lengths) }, async (opened) => {
    const { openSeconds, backend, sequence, model } = opened;
    const times = await measure(sequence, lengths, vocabSizeOf(model));
    return { openSeconds, ...times, backend, peakBytes: peakBytes() };
  });
}

interface LlamaOptions {
  readonly file: string;
  readonly threads: number;
  /** Positions. */
  readonly contextSize: number;
}

/** A model with room for one sequence. */
interface OpenedLlama {
  readonly openSeconds: number;
  /** Release and features. */
  readonly backend: string;
  readonly model: LlamaModel;
  readonly sequence: Sequence;
}

/** Never builds and never downloads: a prebuilt backend that fits this CPU, or an error. */
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
      throw new CflowError('FORMAT_INVALID', `llama.cpp does not read it: ${why}`, {
        file,
        remedy: 'name a whole GGUF of a model that it knows',
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

/** One sequence at a time: the longest, with room for what the peer may keep beside it. */
function contextSizeOf({ prefill, warmup, tokens, context }: Lengths): number {
  return Math.max(prefill, warmup, context + tokens, tokens + PROMPT) + 64;
}

function vocabSizeOf({ fileInfo }: LlamaModel): number {
  const { metadata } = fileInfo;
  const architecture = String(metadata.general?.architecture);
  return Number(metadata[architecture]?.vocab_size ?? 32_000);
}

/** `AVX2 = 1 | LLAMAFILE = 1 | …` as a list of what is there. */
function features(systemInfo: string): string {
  return [...systemInfo.matchAll(/(\w+) = 1/g)].map(([, name]) => name).join(' ');
}

async function measure(sequence: Sequence, lengths: Lengths, vocabSize: number) {
  const ids = (count: number, seed: number) => promptIds(count, vocabSize, seed);
  /** Time to the first token chosen after a prompt: logits of the last token alone, as ours. */
  const prompt = async (tokens: number[]) => {
    await sequence.clearHistory();
    const from = performance.now();
    const tokensOut = sequence.evaluate(tokens, GREEDY);
    await tokensOut.next();
    const took = seconds(from);
    await tokensOut.return();
    return took;
  };
  const firstTokenSeconds = await prompt(ids(1, 0));
  await prompt(ids(lengths.warmup, 1));
  const prefillSeconds = await prompt(ids(lengths.prefill, 2));
  const decoded = await generate(sequence, ids(PROMPT, 3), lengths.tokens);
  const behind = lengths.context
    ? await generate(sequence, ids(lengths.context, 4), lengths.tokens)
    : undefined;
  const contextDecodeSeconds = behind?.decodeSeconds;
  return { firstTokenSeconds, prefillSeconds, ...decoded, contextDecodeSeconds };
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

/** A position has a map of all logits, which is large where it is not looked at at once. */
const SLICE = 64;
/** Raw logits: "after applying the given options", so that there must be none. */
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

/** Greedy, one by one, behind a prompt and the token after it. */
async function generate(sequence: Sequence, prompt: number[], tokens: number) {
  await sequence.clearHistory();
  const generated = sequence.evaluate(prompt, GREEDY);
  await generated.next();
  await generated.next();
  const tokenSeconds: number[] = [];
  const start = performance.now();
  for (let i = 0, last = start; i < tokens; i++) {
    await generated.next();
    const now = performance.now();
    tokenSeconds.push((now - last) / 1000);
    last = now;
  }
  const decodeSeconds = seconds(start);
  await generated.return();
  return { decodeSeconds, tokenSeconds };
}
