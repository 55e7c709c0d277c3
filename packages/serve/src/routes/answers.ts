/** What both endpoints that generate have in common: places, models, streams. */
import type { FastifyReply } from 'fastify';
import { badRequest } from '../errors.js';
import { sendEvents } from '../events.js';
import { type Format, type Head, headOf, usageOf } from '../formats.js';
import { fold, generate, type Piece, type Tally, type Task, tallyOf } from '../generate.js';
import type { Lease } from '../pool.js';
import type { ChatRequest } from '../schema/chat.js';
import type { Usage } from '../schema/common.js';
import { type OPTION_FIELDS, optionsOf } from '../schema/options.js';
import type { Service } from '../service.js';

/** What a request asks for, besides what is generated. */
export interface Asked {
  readonly model: string;
  readonly stream?: boolean | null | undefined;
  readonly stream_options?: { readonly include_usage?: boolean | null | undefined } | null | undefined;
}

/** What both kinds of request say about the generation. */
export type GenerationFields = Pick<ChatRequest, keyof typeof OPTION_FIELDS | 'stop' | 'n'>;

/**
 * What is generated for a request, without its prompts.
 * @param asked tokens; absent = as many as fit, but at most `unasked`
 * @throws ApiError 400 for more tokens than the server allows
 */
export function generationOf(
  { limits }: Service,
  request: GenerationFields,
  asked: number | undefined,
  unasked = Number.POSITIVE_INFINITY,
): Omit<Task, 'prompts' | 'signal'> {
  const { maxTokens: limit = Number.POSITIVE_INFINITY } = limits;
  if (asked !== undefined && asked > limit) {
    const problem = `max_tokens: ${asked} is more than the ${limit} that this server allows (--max-tokens)`;
    throw badRequest(problem, 'max_tokens');
  }
  const stop = request.stop == null ? undefined : [request.stop].flat();
  const mostTokens = Math.min(limit, unasked);
  return { n: request.n ?? 1, maxTokens: asked, mostTokens, options: { ...optionsOf(request), stop } };
}

/** Signals of requests that have a place: from the moment their body is there. */
const places = new WeakMap<FastifyReply, AbortSignal>();

/** A hook: takes a place for a request. @throws ApiError 429 or 503 */
export const takePlace = (service: Service) => async (_request: unknown, reply: FastifyReply) => {
  places.set(reply, service.admission.enter(reply));
};

/**
 * Answers a request that has a place: with one document, or with a stream.
 * @param taskOf what is generated, once the model is there
 * @throws ApiError, CflowError
 */
export async function answer<Event extends object, Answer>(
  service: Service,
  reply: FastifyReply,
  asked: Asked,
  format: Format<Event, Answer>,
  taskOf: (lease: Lease, signal: AbortSignal) => Promise<Task>,
): Promise<Answer | undefined> {
  const signal = places.get(reply)!;
  try {
    const lease = await service.pool.acquire(asked.model);
    try {
      signal.throwIfAborted();
      const task = await taskOf(lease, signal);
      const tally = tallyOf(task);
      const pieces = service.metrics.watch(lease.info.id, tally, generate(lease, task, tally));
      const head = headOf(format.prefix, lease.info.id);
      const choices = task.prompts.length * task.n;
      if (!asked.stream) return format.answer(head, await fold(pieces, choices), usageOf(tally));
      const withUsage = asked.stream_options?.include_usage === true;
      const events = eventsOf(format, head, pieces, choices, withUsage ? tally : undefined);
      await sendEvents(reply, events, { ...service.limits, signal });
      return undefined;
    } finally {
      lease.release();
    }
  } catch (error) {
    // What ended the request says more than that it was ended.
    throw signal.aborted ? signal.reason : error;
  }
}

/** The events of a stream; none before the first piece, so that what fails until then is an ordinary answer. */
async function* eventsOf<Event extends object>(
  format: Format<Event, unknown>,
  head: Head,
  pieces: AsyncGenerator<Piece, void, void>,
  choices: number,
  tally: Tally | undefined,
): AsyncGenerator<Event & { usage?: Usage | null }, void, void> {
  const noUsage = tally ? { usage: null } : {};
  try {
    let next = await pieces.next();
    for (let i = 0; i < choices; i++) {
      if (format.opening) yield { ...format.opening(head, i), ...noUsage };
    }
    for (; !next.done; next = await pieces.next()) {
      const { text, reasoning, calls, logprobs, finish } = next.value;
      if (text || reasoning || calls.length > 0 || logprobs.length > 0 || finish)
        yield { ...format.event(head, next.value), ...noUsage };
    }
    if (tally) yield format.usage(head, usageOf(tally));
  } finally {
    await pieces.return();
  }
}
