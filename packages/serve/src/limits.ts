/** Limits of the server, each with its reason. */
export const LIMITS = {
  /** Bytes of a request's body: more than the prompt of any context that fits a machine. */
  bodyBytes: 4 * 2 ** 20,
  /** Sequences that pass through a model at once. */
  maxSequences: 8,
  /** Requests that wait for a place. */
  maxQueue: 64,
  /** Answers of one request: prompts times `n`. */
  choices: 16,
  /** Stop strings of a request. */
  stops: 16,
  /** Messages of a conversation. */
  messages: 4096,
  /** Tools of a request, and calls of them in a message. */
  tools: 128,
  toolCalls: 128,
  /** Milliseconds that a request may take, waiting included. */
  requestMs: 10 * 60_000,
  /** Milliseconds until the whole request must have arrived. */
  arrivalMs: 60_000,
  /** Milliseconds that a client may leave a full socket unread. */
  stallMs: 30_000,
  /** Milliseconds until a stream sends its head, with or without a token. */
  headMs: 5_000,
  /** Milliseconds between two signs of life of a stream; proxies end silent connections after 60 s. */
  aliveMs: 15_000,
  /** Milliseconds that running requests get after SIGTERM. */
  drainMs: 30_000,
} as const;
