/** Pieces and answers in the two shapes of OpenAI's API. */
import { randomUUID } from 'node:crypto';
import type { ToolCall } from '@cflow/runtime-native';
import type { Folded, Piece, Tally, TokenLogprobs, WrittenToken } from './generate.js';
import type { ChatAnswer, ChatChunk, ChatLogprobs, ToolCallField } from './schema/chat.js';
import type { Usage } from './schema/common.js';
import type { CompletionAnswer, CompletionLogprobs } from './schema/completions.js';

/** What all events of an answer have in common. */
export interface Head {
  readonly id: string;
  /** Seconds since 1970. */
  readonly created: number;
  readonly model: string;
}

type Spoken = Pick<Folded, 'text' | 'reasoning' | 'calls'>;

/** How one endpoint writes its answers. */
export interface Format<Event, Answer> {
  /** Of the answer's id. */
  readonly prefix: string;
  /** The first event of each choice; undefined where there is none. */
  readonly opening: ((head: Head, choice: number) => Event) | undefined;
  event(head: Head, piece: Piece): Event;
  /** The last event, where usage was asked for. */
  usage(head: Head, usage: Usage): Event;
  answer(head: Head, answers: readonly Folded[], usage: Usage): Answer;
}

/** The head of a new answer. */
export const headOf = (prefix: string, model: string): Head => ({
  id: `${prefix}-${randomUUID().replaceAll('-', '')}`,
  created: Math.floor(Date.now() / 1000),
  model,
});

/** Tokens as a client gets to see them. */
export const usageOf = ({ prompt, generated }: Tally): Usage => ({
  prompt_tokens: prompt,
  completion_tokens: generated,
  total_tokens: prompt + generated,
});

/** /v1/chat/completions. */
export const CHAT: Format<ChatChunk, ChatAnswer> = {
  prefix: 'chatcmpl',
  opening: (head, index) =>
    chunk(head, [{ index, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null }]),
  event: (head, { choice, logprobs, finish, ...piece }) =>
    chunk(head, [
      { index: choice, delta: deltaOf(piece), logprobs: chatLogprobs(logprobs), finish_reason: finish },
    ]),
  usage: (head, usage) => ({ ...chunk(head, []), usage }),
  answer: (head, answers, usage) => ({
    ...head,
    object: 'chat.completion',
    choices: answers.map(({ logprobs, finish, ...answer }, index) => ({
      index,
      message: messageOf(answer),
      logprobs: chatLogprobs(logprobs),
      finish_reason: finish,
    })),
    usage,
  }),
};

/** An answer that only calls tools has no text. */
const messageOf = ({ text, reasoning, calls }: Spoken): ChatAnswer['choices'][number]['message'] => ({
  role: 'assistant',
  content: text === '' && calls.length > 0 ? null : text,
  refusal: null,
  ...(reasoning && { reasoning_content: reasoning }),
  ...(calls.length > 0 && { tool_calls: calls.map(callOf) }),
});

const deltaOf = ({ text, reasoning, calls, callsBefore }: Spoken & Pick<Piece, 'callsBefore'>) => ({
  ...(text && { content: text }),
  ...(reasoning && { reasoning_content: reasoning }),
  ...(calls.length > 0 && {
    tool_calls: calls.map((call, i) => ({ index: callsBefore + i, ...callOf(call) })),
  }),
});

const callOf = ({ id, name, arguments: given }: ToolCall): ToolCallField => ({
  id,
  type: 'function',
  function: { name, arguments: given },
});

const chunk = (head: Head, choices: ChatChunk['choices']): ChatChunk => ({
  ...head,
  object: 'chat.completion.chunk',
  choices,
});

const written = ({ token, logprob, bytes }: WrittenToken) => ({ token, logprob, bytes });

function chatLogprobs(tokens: readonly TokenLogprobs[]): ChatLogprobs | null {
  if (tokens.length === 0) return null;
  return {
    content: tokens.map((each) => ({ ...written(each), top_logprobs: each.top.map(written) })),
    refusal: null,
  };
}

/** /v1/completions. */
export const COMPLETION: Format<CompletionAnswer, CompletionAnswer> = {
  prefix: 'cmpl',
  opening: undefined,
  event: (head, piece) => completion(head, [completionChoice(piece, piece.choice, piece.offset)]),
  usage: (head, usage) => ({ ...completion(head, []), usage }),
  answer: (head, answers, usage) => ({
    ...completion(
      head,
      answers.map((answer, index) => completionChoice(answer, index, 0)),
    ),
    usage,
  }),
};

const completion = (head: Head, choices: CompletionAnswer['choices']): CompletionAnswer => ({
  ...head,
  object: 'text_completion',
  choices,
});

const completionChoice = (
  { text, logprobs, finish }: Pick<Folded, 'text' | 'logprobs' | 'finish'>,
  index: number,
  offset: number,
) => ({
  index,
  text,
  logprobs: completionLogprobs(logprobs, offset),
  finish_reason: finish,
});

function completionLogprobs(tokens: readonly TokenLogprobs[], offset: number): CompletionLogprobs | null {
  if (tokens.length === 0) return null;
  let at = offset;
  const offsets = tokens.map(({ token }) => {
    const start = at;
    at += token.length;
    return start;
  });
  return {
    tokens: tokens.map(({ token }) => token),
    token_logprobs: tokens.map(({ logprob }) => logprob),
    top_logprobs: tokens.map(({ top }) =>
      Object.fromEntries(top.map(({ token, logprob }) => [token, logprob])),
    ),
    text_offset: offsets,
  };
}
