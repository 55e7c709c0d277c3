/** One measurement of either engine: pseudo-random tokens one by one, the same in both. */
import { readFileSync } from 'node:fs';
import { Model } from '@cflow/runtime-native';
import { choices, withLlama } from '../decode/run-llama.js';
import { inGroup } from '../harness/memory-group.js';
import { argmax } from '../harness/statistics.js';
import { randomIds } from '../harness/tokens.js';
import type { CappedJob, CappedLengths, CappedRun, EngineName } from './capped-job.js';

/** @throws CflowError as the engines do, UNSUPPORTED without the peer */
export function runCapped({ group, ...job }: CappedJob): Promise<CappedRun> {
  return group === undefined
    ? ENGINES[job.engine](job)
    : inGroup<CappedRun>(group, 'capped/capped-child', job);
}

const ENGINES: Readonly<Record<EngineName, (job: CappedJob) => Promise<CappedRun>>> = {
  cflow: runOurs,
  'llama.cpp': runTheirs,
};

const seconds = (from: number) => (performance.now() - from) / 1000;
const positions = ({ warmup, tokens }: CappedLengths) => warmup + tokens;

async function runOurs({ file, threads, memory, vocabSize, lengths }: CappedJob): Promise<CappedRun> {
  const start = performance.now();
  const options = { engine: 'native', threads, memory, context: positions(lengths) } as const;
  const model = await Model.open(file, options);
  try {
    const session = model.createSession();
    const openSeconds = seconds(start);
    const measured = await measure(lengths, vocabSize, async (id) => {
      await session.decode(id);
      return argmax(session.logits());
    });
    const backend = `native ${session.stats().native?.isa}`;
    await session.close();
    return { openSeconds, ...measured, backend };
  } finally {
    await model.close();
  }
}

function runTheirs({ file, threads, vocabSize, lengths }: CappedJob): Promise<CappedRun> {
  const contextSize = positions(lengths) + 64;
  return withLlama({ file, threads, contextSize }, async ({ openSeconds, backend, sequence }) => {
    const measured = await measure(lengths, vocabSize, async (id) => (await choices(sequence, [id]))[0]!);
    return { openSeconds, ...measured, backend };
  });
}

/** @param next appends a token; resolves to the most likely one after it */
async function measure(
  { warmup, tokens }: CappedLengths,
  vocabSize: number,
  next: (id: number) => Promise<number>,
): Promise<Pick<CappedRun, 'tokenSeconds' | 'chosen' | 'bytesPerToken'>> {
  const ids = randomIds(warmup + tokens, vocabSize);
  for (const id of ids.slice(0, warmup)) await next(id);
  const tokenSeconds: number[] = [];
  const chosen: number[] = [];
  const before = diskBytes();
  for (const id of ids.slice(warmup)) {
    const from = performance.now();
    chosen.push(await next(id));
    tokenSeconds.push(seconds(from));
  }
  const after = diskBytes();
  const bytesPerToken = before === undefined || after === undefined ? undefined : (after - before) / tokens;
  return { tokenSeconds, chosen, bytesPerToken };
}

/** What this process, all its threads, had the disk read so far; mapped pages that it waited for are counted. */
function diskBytes(): number | undefined {
  try {
    const found = /^read_bytes: (\d+)/m.exec(readFileSync('/proc/self/io', 'utf8'));
    return found ? Number(found[1]) : undefined;
  } catch {
    return undefined;
  }
}
