/** One measurement of decode and prefill; both engines do the same work in the same order. */
import {
  Model,
  type NativeStats,
  type OpenModelOptions,
  type ProfileEntry,
  type Session,
} from '@cflow/runtime-native';
import { type Sequence, vocabSizeOf, withLlama } from '../../engines/llama.js';
import { peakBytes, statusBytes } from '../../runner/memory.js';
import { argmax } from '../../runner/statistics.js';

/** Number of tokens of each part. */
export interface Lengths {
  /** Tokens decoded one by one, timed. */
  readonly tokens: number;
  /** Tokens of the timed prefill. */
  readonly prefill: number;
  /** Tokens processed before timing, to touch every page and expert. */
  readonly warmup: number;
  /** Context depth of a second decode of `tokens` tokens; 0: none. */
  readonly context: number;
}

export type DecodeJob =
  | {
      readonly kind: 'cflow';
      readonly file: string;
      readonly lengths: Lengths;
      readonly options: OpenModelOptions;
    }
  | {
      readonly kind: 'llama.cpp';
      readonly file: string;
      readonly lengths: Lengths;
      readonly threads: number;
    };

/** One run; seconds and bytes. */
export interface DecodeRun {
  /** Time to open the model and create a session. */
  readonly openSeconds: number;
  /** From there to the logits of a one-token prompt, the first touch of the weights. */
  readonly firstTokenSeconds: number;
  /** Increase of mapped file memory by opening and the first token: weights touched. */
  readonly firstTokenFileBytes?: number | undefined;
  readonly prefillSeconds: number;
  /** For `tokens` tokens, greedy, one by one, including token selection. */
  readonly decodeSeconds: number;
  /** The same at context depth `context`. */
  readonly contextDecodeSeconds?: number | undefined;
  /** Seconds of each token. */
  readonly tokenSeconds: readonly number[];
  readonly peakBytes: number;
  /** Engine and instruction set, as the engine reports them. */
  readonly backend: string;
  /** Weight bytes read by decode, counted by the engine. */
  readonly bytesPerToken?: number | undefined;
  readonly native?: Omit<NativeStats, 'profile'> | undefined;
  /** Profile of the timed part; empty unless enabled. */
  readonly decodeProfile?: readonly ProfileEntry[] | undefined;
  readonly prefillProfile?: readonly ProfileEntry[] | undefined;
}

/** Pseudo-random tokens, the same for every engine; none is special. */
export function promptIds(count: number, vocabSize: number, seed = 1): number[] {
  const first = Math.min(300, vocabSize - 1);
  return Array.from({ length: count }, (_, i) => first + (((i + seed) * 7919) % (vocabSize - first)));
}

const PROMPT = 4;

const seconds = (from: number) => (performance.now() - from) / 1000;

/** One measurement, in this process. @throws CflowError UNSUPPORTED without node-llama-cpp, and errors of the engines */
export function runDecode(job: DecodeJob): Promise<DecodeRun> {
  return job.kind === 'cflow' ? runCflow(job) : runLlama(job);
}

/** Opens, warms up, and times prefill and decode, each in its own session. */
async function runCflow({ file, lengths, options }: DecodeJob & { kind: 'cflow' }): Promise<DecodeRun> {
  const filePages = statusBytes('RssFile');
  const start = performance.now();
  const model = await Model.open(file, options);
  try {
    const first = model.createSession();
    const openSeconds = seconds(start);
    const ids = (count: number, seed: number) => promptIds(count, model.config.vocabSize, seed);
    const touch = performance.now();
    await first.prefill(ids(1, 0));
    const firstTokenSeconds = seconds(touch);
    const firstTokenFileBytes = difference(statusBytes('RssFile'), filePages);
    await first.close();
    await inSession(model, (session) => session.prefill(ids(lengths.warmup, 1)));
    const prefilled = await inSession(model, (session) => prefill(session, ids(lengths.prefill, 2)));
    const decoded = await inSession(model, (session) => decode(session, ids(PROMPT, 3), lengths.tokens));
    const behind = lengths.context
      ? await inSession(model, (session) => decode(session, ids(lengths.context, 4), lengths.tokens))
      : undefined;
    const engine = decoded.native ? `native ${decoded.native.isa}` : model.engineName;
    return {
      openSeconds,
      firstTokenSeconds,
      firstTokenFileBytes,
      ...prefilled,
      ...decoded,
      contextDecodeSeconds: behind?.decodeSeconds,
      backend: engine,
      peakBytes: peakBytes(),
    };
  } finally {
    await model.close();
  }
}

async function inSession<T>(model: Model, work: (session: Session) => Promise<T>): Promise<T> {
  const session = model.createSession();
  try {
    return await work(session);
  } finally {
    await session.close();
  }
}

async function prefill(session: Session, ids: readonly number[]) {
  const before = session.stats().native;
  const from = performance.now();
  await session.prefill(ids);
  const prefillSeconds = seconds(from);
  return { prefillSeconds, prefillProfile: profileSince(before, session.stats().native) };
}

async function decode(session: Session, prompt: readonly number[], tokens: number) {
  await session.prefill(prompt);
  // The first token after prefill wakes threads and caches; not timed.
  await session.decode(argmax(session.logits()));
  const before = session.stats().native;
  const tokenSeconds: number[] = [];
  const start = performance.now();
  for (let i = 0, last = start; i < tokens; i++) {
    await session.decode(argmax(session.logits()));
    const now = performance.now();
    tokenSeconds.push((now - last) / 1000);
    last = now;
  }
  const decodeSeconds = seconds(start);
  const after = session.stats().native;
  const bytesPerToken = after && before && (after.bytesRead - before.bytesRead) / tokens;
  const { profile: _, ...native } = after ?? { profile: [] };
  return {
    decodeSeconds,
    tokenSeconds,
    bytesPerToken,
    native: after && (native as Omit<NativeStats, 'profile'>),
    decodeProfile: profileSince(before, after),
  };
}

/** Difference of two profiles, by kind of step. */
export function profileSince(before?: NativeStats, after?: NativeStats): ProfileEntry[] {
  const earlier = new Map(before?.profile.map((entry) => [entry.name, entry]));
  const since = (after?.profile ?? []).map(({ name, calls, seconds: spent, bytes }) => {
    const from = earlier.get(name) ?? { calls: 0, seconds: 0, bytes: 0 };
    return { name, calls: calls - from.calls, seconds: spent - from.seconds, bytes: bytes - from.bytes };
  });
  return since.filter(({ calls }) => calls > 0);
}

function difference(after: number | undefined, before: number | undefined): number | undefined {
  return after === undefined || before === undefined ? undefined : after - before;
}

/** Greedy; does not stop at end-of-text tokens. */
const GREEDY = { temperature: 0, yieldEogToken: true };

/** The same with llama.cpp. */
function runLlama({ file, lengths, threads }: DecodeJob & { kind: 'llama.cpp' }): Promise<DecodeRun> {
  return withLlama({ file, threads, contextSize: contextSizeOf(lengths) }, async (opened) => {
    const { openSeconds, backend, sequence, model } = opened;
    const times = await measureLlama(sequence, lengths, vocabSizeOf(model));
    return { openSeconds, ...times, backend, peakBytes: peakBytes() };
  });
}

/** Context of the longest sequence, with room for tokens that llama.cpp may reserve. */
function contextSizeOf({ prefill, warmup, tokens, context }: Lengths): number {
  return Math.max(prefill, warmup, context + tokens, tokens + PROMPT) + 64;
}

async function measureLlama(sequence: Sequence, lengths: Lengths, vocabSize: number) {
  const ids = (count: number, seed: number) => promptIds(count, vocabSize, seed);
  /** Time to first token: logits of the last token only, as ours. */
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

/** Greedy decode, one by one, after a prompt and its first token. */
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
