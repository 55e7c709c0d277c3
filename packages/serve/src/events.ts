/** Server-sent events, at the pace of whoever reads them. */
import { once } from 'node:events';
import type { FastifyReply } from 'fastify';
import { ClientGone } from './admission.js';
import { ApiError, toApiError } from './errors.js';

/** When a stream speaks, and for how long it is spoken to nobody. Milliseconds. */
export interface EventOptions {
  /** Aborted when the request must end. */
  readonly signal: AbortSignal;
  /** The head is sent by then; errors before it are ordinary answers. */
  readonly headMs: number;
  /** After so long without an event a comment is sent. */
  readonly aliveMs: number;
  /** How long a client may leave a full socket unread. */
  readonly stallMs: number;
}

const HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  // nginx passes events on at once.
  'x-accel-buffering': 'no',
};

const frame = (value: unknown) => `data: ${JSON.stringify(value)}\n\n`;

/**
 * Sends events, then `[DONE]`; an error among them is the last event.
 * @throws whatever `events` throws before the head is sent
 */
export async function sendEvents(
  reply: FastifyReply,
  events: AsyncGenerator<unknown, void, void>,
  options: EventOptions,
): Promise<void> {
  const first = events.next();
  await atMost(first, options.headMs);
  reply.hijack();
  const { raw } = reply;
  raw.writeHead(200, { ...(reply.getHeaders() as Record<string, string>), ...HEADERS });
  const alive = setInterval(() => raw.write(': still here\n\n'), options.aliveMs);
  try {
    for (let next = await first; !next.done; next = await events.next()) {
      await write(raw, frame(next.value), options);
      alive.refresh();
    }
    raw.end('data: [DONE]\n\n');
  } catch (error) {
    const cause = options.signal.aborted ? options.signal.reason : error;
    if (cause instanceof ClientGone || error instanceof ClientGone) raw.destroy();
    else raw.end(frame(toApiError(cause).envelope));
  } finally {
    clearInterval(alive);
    await events.return();
  }
  await closed(raw, options);
}

/** Waits for a promise, but only so long. */
async function atMost(promise: Promise<unknown>, ms: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms);
  });
  try {
    await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** @throws ClientGone where nobody reads */
async function write(
  raw: FastifyReply['raw'],
  text: string,
  { signal, stallMs }: EventOptions,
): Promise<void> {
  if (raw.destroyed) throw new ClientGone();
  if (raw.write(text)) return;
  const stall = AbortSignal.any([signal, AbortSignal.timeout(stallMs)]);
  await once(raw, 'drain', { signal: stall }).catch(() => {
    throw signal.reason instanceof ApiError ? signal.reason : new ClientGone();
  });
}

/** A client that does not read the end of its answer is left. */
async function closed(raw: FastifyReply['raw'], { stallMs }: EventOptions): Promise<void> {
  if (raw.closed || raw.destroyed) return;
  await once(raw, 'close', { signal: AbortSignal.timeout(stallMs) }).catch(() => raw.destroy());
}
