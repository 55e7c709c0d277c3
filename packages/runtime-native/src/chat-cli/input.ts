/** Where messages come from: a terminal with a prompt, or lines of stdin. */
import { createInterface, type Interface } from 'node:readline';
import { COMMAND_NAMES } from './commands.js';
import { PASTE_OFF, PASTE_ON, PasteFilter, pasted, unpasted } from './paste.js';

/** One message after the other. */
export interface Input {
  /** The next line; undefined once there are no more. */
  next(): Promise<string | undefined>;
  /** Runs an answer, which Ctrl-C aborts. */
  answering<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T>;
  close(): void;
}

/** Lines of stdin; `signal` ends an answer and all that follows. */
export function pipedInput(stdin: NodeJS.ReadableStream, signal: AbortSignal): Input {
  const lines = createInterface({ input: stdin, signal })[Symbol.asyncIterator]();
  return {
    next: async () => {
      const { value, done } = await lines.next();
      return done ? undefined : value;
    },
    answering: (work) => work(signal),
    close: () => undefined,
  };
}

const PROMPT = '> ';

/** A terminal's. */
export interface TerminalOptions {
  readonly stdin: NodeJS.ReadStream;
  readonly stdout: NodeJS.WriteStream;
  /** Entries of earlier conversations, the oldest first. */
  readonly history: readonly string[];
  readonly onEntry: (entry: string) => void;
}

/** A prompt with editing, history, completion of commands and pasted lines. */
export class TerminalInput implements Input {
  readonly #options: TerminalOptions;
  readonly #lines: Interface;
  readonly #typed: string[] = [];
  #waiting: ((line: string | undefined) => void) | undefined;
  #answer: AbortController | undefined;
  /** Whether the last thing was a Ctrl-C at an empty prompt. */
  #leaving = false;
  #closed = false;

  constructor(options: TerminalOptions) {
    const { stdin, stdout, history } = options;
    this.#options = options;
    const filter = Object.assign(new PasteFilter(), { setRawMode: (raw: boolean) => stdin.setRawMode(raw) });
    stdin.pipe(filter);
    stdout.write(PASTE_ON);
    this.#lines = createInterface({
      input: filter,
      output: stdout,
      terminal: true,
      prompt: PROMPT,
      history: history.map(pasted).reverse(),
      historySize: 1000,
      removeHistoryDuplicates: true,
      completer: (line: string) => [line ? COMMAND_NAMES.filter((name) => name.startsWith(line)) : [], line],
    });
    this.#lines.on('line', (line) => this.#take(unpasted(line)));
    this.#lines.on('SIGINT', () => this.interrupt());
    this.#lines.on('close', () => {
      stdout.write(PASTE_OFF);
      stdin.pause();
      this.#closed = true;
      this.#answer?.abort();
      this.#waiting?.(undefined);
    });
  }

  async next(): Promise<string | undefined> {
    const typed = this.#typed.shift();
    if (typed !== undefined || this.#closed) return typed;
    this.#lines.prompt();
    return new Promise((resolve) => {
      this.#waiting = resolve;
    });
  }

  async answering<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    this.#answer = new AbortController();
    try {
      return await work(this.#answer.signal);
    } finally {
      this.#answer = undefined;
    }
  }

  /** Ends an answer; else clears the line; else leaves, if it was done twice. */
  interrupt(): void {
    if (this.#answer) {
      this.#answer.abort();
      return;
    }
    const { stdout } = this.#options;
    const empty = this.#lines.line === '';
    if (empty && this.#leaving) {
      stdout.write('\n');
      this.close();
      return;
    }
    this.#leaving = empty;
    stdout.write(empty ? '\n(Ctrl-C again to leave)\n' : '^C\n');
    this.#lines.write(null, { ctrl: true, name: 'e' });
    this.#lines.write(null, { ctrl: true, name: 'u' });
    this.#lines.prompt();
  }

  close(): void {
    this.#lines.close();
  }

  #take(line: string): void {
    this.#leaving = false;
    if (line.trim()) this.#options.onEntry(line);
    const waiting = this.#waiting;
    this.#waiting = undefined;
    if (waiting) waiting(line);
    else this.#typed.push(line);
  }
}
