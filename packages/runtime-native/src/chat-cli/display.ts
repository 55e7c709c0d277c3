/** How an answer looks on a terminal, and in a pipe. */
import type { AnswerPart } from '../chat/answer/parts.js';

/** Where and how to write. */
export interface DisplayOptions {
  readonly write: (text: string) => Promise<void>;
  /** Whether people read it: reasoning and calls are shown, and nothing steers the terminal. */
  readonly terminal: boolean;
  readonly colours: boolean;
}

const DIM = '\x1b[2m';
const PLAIN = '\x1b[0m';

/** Writes the parts of one answer after the other. */
export class Display {
  readonly #options: DisplayOptions;
  #reasoning = false;

  constructor(options: DisplayOptions) {
    this.#options = options;
  }

  async show(parts: readonly AnswerPart[]): Promise<void> {
    for (const part of parts) {
      const text = this.#text(part);
      if (text) await this.#options.write(text);
    }
  }

  /** Ends the answer. */
  async end(): Promise<void> {
    await this.#options.write(`${this.#switch(false)}\n`);
  }

  /** One line that is no part of the answer. */
  dim(text: string): string {
    return this.#options.colours ? `${DIM}${text}${PLAIN}` : text;
  }

  #text(part: AnswerPart): string {
    const { terminal } = this.#options;
    if (part.kind === 'content') return this.#switch(false) + (terminal ? harmless(part.text) : part.text);
    if (!terminal) return '';
    if (part.kind !== 'tool_call') return this.#switch(true) + harmless(part.text);
    return `${this.#switch(false)}${this.dim(`[${harmless(part.call.name)}(${harmless(part.call.arguments)})]`)}\n`;
  }

  /** What begins reasoning, or ends it. */
  #switch(reasoning: boolean): string {
    if (reasoning === this.#reasoning) return '';
    this.#reasoning = reasoning;
    const { colours } = this.#options;
    if (reasoning) return colours ? DIM : '[thinking]\n';
    return colours ? `${PLAIN}\n\n` : '\n[/thinking]\n\n';
  }
}

/** Control characters of a text are shown, not obeyed. */
export function harmless(text: string): string {
  return text.replace(/[^\P{Cc}\n\t]/gu, (c) => `\\x${c.codePointAt(0)!.toString(16).padStart(2, '0')}`);
}
