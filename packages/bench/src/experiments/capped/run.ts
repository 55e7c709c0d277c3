import { readFileSync } from 'node:fs';
import { Model } from '@cflow/runtime-native';
import { choices, withLlama } from '../../engines/llama.js';
import { argmax } from '../../runner/statistics.js';
import { randomIds } from '../../runner/tokens.js';

/** One measurement of either engine under a memory cap: the same pseudo-random tokens, one by one. */

export type EngineName = 'cflow' | 'llama.cpp';

export interface CappedLengths {
  /** Tokens decoded before any is timed, so that the caches reach a steady state. */
  readonly warmup: number;
  /** Tokens decoded and timed, one by one. */
  readonly tokens: number;
}

export interface CappedJob {
  readonly engine: EngineName;
  /** .cflow, .vflow or .gguf, depending on the engine. */
  readonly file: string;
  readonly threads: number;
  /** Memory limit of our engine, bytes; llama.cpp has no such option. */
  readonly memory: number;
  readonly vocabSize: number;
  readonly lengths: CappedLengths;
}

/** One run. */
export interface CappedRun {
  readonly openSeconds: number;
  /** Seconds of each timed token, including selection of the next. */
  readonly tokenSeconds: readonly number[];
  /** Bytes read from disk per timed token; undefined if the system does not report them. */
  readonly bytesPerToken: number | undefined;
  /** Most likely token after each timed token. */
  readonly chosen: readonly number[];
  /** Engine and instruction set, as the engine reports them. */
  readonly backend: string;
}

/** @throws CflowError UNSUPPORTED without node-llama-cpp, and errors of the engines */
export function runCapped(job: CappedJob): Promise<CappedRun> {
  return ENGINES[job.engine](job);
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

/** Bytes that all threads of this process have read from disk, page faults included. */
function diskBytes(): number | undefined {
  try {
    const found = /^read_bytes: (\d+)/m.exec(readFileSync('/proc/self/io', 'utf8'));
    return found ? Number(found[1]) : undefined;
  } catch {
    return undefined;
  }
}
