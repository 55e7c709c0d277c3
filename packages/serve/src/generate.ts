/** A request's answers, piece by piece. A whole answer is the fold of the pieces that a stream would send. */
import { setMaxListeners } from 'node:events';
import type {
  AnswerPart,
  FinishReason,
  GeneratedToken,
  GenerateOptions,
  TextTokenizer,
  ToolCall,
} from '@cflow/runtime-native';
import { badRequest } from './errors.js';
import type { Lease } from './pool.js';
import type { AnswerReader } from './prompt.js';

/** Why an answer ended, as OpenAI has it. */
export type Finish = 'stop' | 'length' | 'tool_calls';

const FINISH: Readonly<Record<FinishReason, Finish>> = {
  eos: 'stop',
  stop: 'stop',
  length: 'length',
  context: 'length',
};

/** A token with its text and the bytes that it stands for. */
export interface WrittenToken {
  readonly token: string;
  readonly bytes: number[];
  readonly logprob: number;
}

/** Log-probabilities of a token and of its alternatives. */
export interface TokenLogprobs extends WrittenToken {
  readonly top: readonly WrittenToken[];
}

/** A piece of one answer. */
export interface Piece {
  /** Which answer. */
  readonly choice: number;
  readonly text: string;
  readonly reasoning: string;
  readonly calls: readonly ToolCall[];
  /** Calls of the answer before this piece. */
  readonly callsBefore: number;
  /** Characters of the answer's tokens before this piece, where there are log-probabilities. */
  readonly offset: number;
  readonly logprobs: readonly TokenLogprobs[];
  /** Set on the last piece. */
  readonly finish: Finish | null;
}

/** An answer: its pieces joined. */
export type Folded = Omit<Piece, 'choice' | 'offset' | 'callsBefore'>;

/** What a request wants generated. */
export interface Task {
  /** Ids of each prompt. */
  readonly prompts: readonly (readonly number[])[];
  /** Takes an answer apart; absent = all of it is text. */
  readonly reader?: (() => AnswerReader) | undefined;
  /** Answers to each prompt. */
  readonly n: number;
  /** Tokens of an answer; absent = as many as fit. */
  readonly maxTokens: number | undefined;
  /** Most tokens of an answer that says nothing of them. */
  readonly mostTokens: number;
  readonly options: GenerateOptions;
  /** Ends all answers. */
  readonly signal: AbortSignal;
}

/** Counts the tokens of a request. */
export interface Tally {
  readonly prompt: number;
  generated: number;
}

/** Tokens of the prompts, before any answer. */
export const tallyOf = ({ prompts }: Task): Tally => ({
  prompt: prompts.reduce((sum, ids) => sum + ids.length, 0),
  generated: 0,
});

/**
 * The answers of a task, in the order in which their tokens come. Leaving early ends all of them.
 * @throws ApiError 400 for a prompt that fills the context; as Scheduler.generate
 */
export async function* generate(lease: Lease, task: Task, tally: Tally): AsyncGenerator<Piece, void, void> {
  const tokenizer = lease.model.tokenizer;
  const abort = new AbortController();
  const signal = AbortSignal.any([task.signal, abort.signal]);
  setMaxListeners(0, signal);
  const answers = task.prompts.flatMap((ids, at) =>
    Array.from({ length: task.n }, (_, i) => {
      const tokens = lease.scheduler.generate({ ...optionsOf(lease, task, ids, i), signal });
      return piecesOf(tokens, at * task.n + i, { tokenizer, tally, read: task.reader?.() ?? asText });
    }),
  );
  try {
    yield* answers.length === 1 ? answers[0]! : merge(answers, abort);
  } finally {
    abort.abort();
  }
}

function optionsOf(
  lease: Lease,
  task: Task,
  ids: readonly number[],
  choice: number,
): GenerateOptions & { readonly ids: readonly number[] } {
  const { options } = task;
  const { contextLength } = lease.info;
  const room = contextLength - ids.length + 1;
  if (room < 1) {
    const problem = `the prompt has ${ids.length} tokens, and the context of the model ${contextLength}`;
    throw badRequest(problem, null, 'context_length_exceeded');
  }
  const seed = options.seed === undefined ? undefined : (options.seed + choice) % 2 ** 32;
  return { ...options, ids, seed, maxTokens: task.maxTokens ?? Math.min(room, task.mostTokens) };
}

const asText: AnswerReader = ({ text }) => [{ kind: 'content', text }];

/** What the pieces of an answer are made with. */
interface Making {
  readonly tokenizer: TextTokenizer | undefined;
  readonly tally: Tally;
  readonly read: AnswerReader;
}

async function* piecesOf(
  tokens: AsyncGenerator<GeneratedToken, void, void>,
  choice: number,
  { tokenizer, tally, read }: Making,
): AsyncGenerator<Piece, void, void> {
  let offset = 0;
  let callsBefore = 0;
  for await (const token of tokens) {
    tally.generated++;
    const parts = read(token);
    const text = joined(parts, 'content');
    const reasoning = joined(parts, 'reasoning');
    const calls = parts.flatMap((part) => (part.kind === 'tool_call' ? [part.call] : []));
    const logprobs = token.logprobs ? [writtenLogprobs(tokenizer, token.id, token.logprobs)] : [];
    const finish = token.finish ? finishOf(token.finish, callsBefore + calls.length) : null;
    yield { choice, text, reasoning, calls, callsBefore, offset, logprobs, finish };
    callsBefore += calls.length;
    for (const { token: written } of logprobs) offset += written.length;
  }
}

const joined = (parts: readonly AnswerPart[], kind: 'content' | 'reasoning') =>
  parts.map((part) => (part.kind === kind ? part.text : '')).join('');

/** An answer that calls tools waits for what they give. */
const finishOf = (reason: FinishReason, calls: number): Finish =>
  calls > 0 && FINISH[reason] === 'stop' ? 'tool_calls' : FINISH[reason];

function writtenLogprobs(
  tokenizer: TextTokenizer | undefined,
  id: number,
  { logprob, top }: NonNullable<GeneratedToken['logprobs']>,
): TokenLogprobs {
  const written = (each: number, value: number) => ({ ...textOf(tokenizer, each), logprob: value });
  return { ...written(id, logprob), top: top.map((each) => written(each.id, each.logprob)) };
}

/** A token as it reads behind others: tokenizers cut the space in front of a first one. */
function textOf(tokenizer: TextTokenizer | undefined, id: number): { token: string; bytes: number[] } {
  if (!tokenizer) return { token: String(id), bytes: [] };
  const own = tokenizer.bytesOf(id);
  const bytes =
    own === undefined || own === 'none'
      ? Buffer.from(tokenizer.decode([id, id]).slice(tokenizer.decode([id]).length))
      : Buffer.from(own);
  return { token: bytes.toString('utf8'), bytes: [...bytes] };
}

/** Values of several generators as they come. When one fails, or nobody reads on, the others end too. */
async function* merge<T>(
  sources: AsyncGenerator<T, void, void>[],
  abort: AbortController,
): AsyncGenerator<T, void, void> {
  const next = (i: number) => sources[i]!.next().then((result) => ({ i, result }));
  const pending = new Map(sources.map((_, i) => [i, next(i)]));
  try {
    while (pending.size > 0) {
      const { i, result } = await Promise.race(pending.values());
      if (result.done) pending.delete(i);
      else {
        pending.set(i, next(i));
        yield result.value;
      }
    }
  } finally {
    abort.abort();
    await Promise.allSettled(pending.values());
    await Promise.allSettled(sources.map((source) => source.return()));
  }
}

/** The answers that pieces join to, by choice. */
export async function fold(pieces: AsyncIterable<Piece>, choices: number): Promise<Folded[]> {
  const answers = Array.from({ length: choices }, () => [] as Piece[]);
  for await (const piece of pieces) answers[piece.choice]!.push(piece);
  return answers.map((own) => ({
    text: own.map(({ text }) => text).join(''),
    reasoning: own.map(({ reasoning }) => reasoning).join(''),
    calls: own.flatMap(({ calls }) => calls),
    logprobs: own.flatMap(({ logprobs }) => logprobs),
    finish: own.at(-1)?.finish ?? null,
  }));
}
