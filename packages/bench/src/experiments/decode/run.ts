/** One measurement of decode and prefill, by either engine in the same order of work. */
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

/** How many tokens each part has. */
export interface Lengths {
  /** Tokens decoded one by one, timed. */
  readonly tokens: number;
  /** Tokens of the timed prefill. */
  readonly prefill: number;
  /** Tokens passed before anything is timed, so that every page and expert has been touched. */
  readonly warmup: number;
  /** Where it is not 0, `tokens` are decoded once more, behind so many. */
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

/** Of one child; seconds and bytes. */
export interface DecodeRun {
  /** Until a session stands. */
  readonly openSeconds: number;
  /** From there to the logits of a prompt of one token: the first touch of the weights. */
  readonly firstTokenSeconds: number;
  /** By so much more of mapped files is in memory then than before the model was opened: weights that were touched. */
  readonly firstTokenFileBytes?: number | undefined;
  readonly prefillSeconds: number;
  /** For `tokens` tokens: one by one, greedy, choosing included. */
  readonly decodeSeconds: number;
  /** For as many behind `context` tokens. */
  readonly contextDecodeSeconds?: number | undefined;
  /** Seconds of each token. */
  readonly tokenSeconds: readonly number[];
  readonly peakBytes: number;
  /** What computes: engine and instruction set, or the backend's own words. */
  readonly backend: string;
  /** Weight bytes that decoding read, by the engine's count. */
  readonly bytesPerToken?: number | undefined;
  readonly native?: Omit<NativeStats, 'profile'> | undefined;
  /** Of the timed part alone; empty unless the engine collects it. */
  readonly decodeProfile?: readonly ProfileEntry[] | undefined;
  readonly prefillProfile?: readonly ProfileEntry[] | undefined;
}

/** Tokens of a text that means nothing, the same for every engine; none is special. */
export function promptIds(count: number, vocabSize: number, seed = 1): number[] {
  const first = Math.min(300, vocabSize - 1);
  return Array.from({ length: count }, (_, i) => first + (((i + seed) * 7919) % (vocabSize - first)));
}

const PROMPT = 4;

const seconds = (from: number) => (performance.now() - from) / 1000;

/** One measurement, in this process. @throws CflowError as the engines do, UNSUPPORTED without the peer */
export function runDecode(job: DecodeJob): Promise<DecodeRun> {
  return job.kind === 'cflow' ? runCflow(job) : runLlama(job);
}

/** Opens, warms up, and times a prefill and a decode, each in a session of its own. */
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
  // Starting to decode is not decoding: the first token wakes what the prefill left.
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

/** What each kind of step did between two states of an engine. */
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

/** Greedy; end-of-text tokens are tokens like others here. */
const GREEDY = { temperature: 0, yieldEogToken: true };

/** The same on llama.cpp. */
function runLlama({ file, lengths, threads }: DecodeJob & { kind: 'llama.cpp' }): Promise<DecodeRun> {
  return withLlama({ file, threads, contextSize: contextSizeOf(lengths) }, async (opened) => {
    const { openSeconds, backend, sequence, model } = opened;
    const times = await measureLlama(sequence, lengths, vocabSizeOf(model));
    return { openSeconds, ...times, backend, peakBytes: peakBytes() };
  });
}

/** One sequence at a time: the longest, with room for what the peer may keep beside it. */
function contextSizeOf({ prefill, warmup, tokens, context }: Lengths): number {
  return Math.max(prefill, warmup, context + tokens, tokens + PROMPT) + 64;
}

async function measureLlama(sequence: Sequence, lengths: Lengths, vocabSize: number) {
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
