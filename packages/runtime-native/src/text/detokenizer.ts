/** Ids to text, piece by piece. */
import { Utf8Boundary } from './utf8.js';

/** What the stream needs of a tokenizer. */
export interface Detokenizer {
  /** Text of ids, without special tokens. */
  decode(ids: readonly number[]): string;
  /** Bytes that the decoder may join with those of the next token; `none` for a token that it skips. */
  bytesOf(id: number): readonly number[] | 'none' | undefined;
}

/** Tokens that give the next its context: a decoder may treat the first token of a text in its own way. */
const CONTEXT = 16;

/**
 * Turns ids into pieces of text that never split a character. The pieces, `flush` included, join to what `decode` makes of
 * all ids.
 */
export class TextStream {
  readonly #tokenizer: Detokenizer;
  readonly #boundary = new Utf8Boundary();
  /** Ids whose text is looked at: the context, then those since. */
  #window: number[];
  /** Where those since the context begin. */
  #fresh: number;
  /** Characters of the window's text that were given out. */
  #given: number;

  /** @param prompt ids that the text continues */
  constructor(tokenizer: Detokenizer, prompt: readonly number[]) {
    this.#tokenizer = tokenizer;
    this.#window = contextOf(tokenizer, prompt);
    this.#fresh = this.#window.length;
    for (const id of this.#window) this.#follow(id);
    this.#given = this.#complete(tokenizer.decode(this.#window));
  }

  /** The text that this id completes; empty while a character is incomplete. */
  push(id: number): string {
    this.#window.push(id);
    this.#follow(id);
    const text = this.#tokenizer.decode(this.#window);
    const piece = this.#give(text, this.#complete(text));
    if (!this.#boundary.inside && this.#window.length > 2 * CONTEXT) this.#forget();
    return piece;
  }

  /** Whatever is held back, complete or not. */
  flush(): string {
    this.#boundary.reset();
    const text = this.#tokenizer.decode(this.#window);
    return this.#give(text, text.length);
  }

  #give(text: string, end: number): string {
    const piece = text.slice(this.#given, end);
    this.#given = Math.max(this.#given, end);
    return piece;
  }

  /** Characters before the incomplete one, which decodes to one replacement character. */
  #complete(text: string): number {
    return text.length - (this.#boundary.inside ? 1 : 0);
  }

  #follow(id: number): void {
    const bytes = this.#tokenizer.bytesOf(id);
    if (bytes === 'none') return;
    if (bytes === undefined) this.#boundary.reset();
    else for (const byte of bytes) this.#boundary.push(byte);
  }

  /** The ids since the context become the context, unless they have no text and so could not serve as one. */
  #forget(): void {
    const fresh = this.#window.slice(this.#fresh);
    const text = this.#tokenizer.decode(fresh);
    if (text) {
      this.#window = fresh;
      this.#given = text.length;
    }
    this.#fresh = this.#window.length;
  }
}

/** The last ids of a prompt, as many as have a text. */
function contextOf(tokenizer: Detokenizer, prompt: readonly number[]): number[] {
  for (let count = CONTEXT; count < prompt.length; count *= 2) {
    const tail = prompt.slice(-count);
    if (tokenizer.decode(tail)) return tail;
  }
  return [...prompt];
}
