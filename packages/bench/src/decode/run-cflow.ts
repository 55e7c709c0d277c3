/** One measurement of our own engine. */
import { Model, type NativeStats, type ProfileEntry, type Session } from '@cflow/runtime-native';
import { peakBytes, statusBytes } from '../harness/peak-memory.js';
import { argmax } from '../harness/statistics.js';
import { type DecodeJob, type DecodeRun, promptIds } from './decode-job.js';

const PROMPT = 4;

const seconds = (from: number) => (performance.now() - from) / 1000;

/** Opens, warms up, and times a prefill and a decode, each in a session of its own. */
export async function runCflow({
  file,
  lengths,
  options,
}: DecodeJob & { kind: 'cflow' }): Promise<DecodeRun> {
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
