/** Stop strings: the text ends before the first of them, wherever the tokens are cut. */

/** What may be shown, and whether a stop string was found. */
export interface Stopped {
  readonly text: string;
  readonly found: boolean;
}

/** Holds back text that may be the beginning of a stop string. */
export class StopStrings {
  readonly #strings: readonly string[];
  #held = '';

  /** @param strings none of them empty */
  constructor(strings: readonly string[]) {
    this.#strings = strings;
  }

  /** Adds a piece of text. Once a string is found, nothing more is to be added. */
  push(piece: string): Stopped {
    const text = this.#held + piece;
    const ends = this.#strings.map((string) => text.indexOf(string)).filter((at) => at >= 0);
    if (ends.length > 0) {
      this.#held = '';
      return { text: text.slice(0, Math.min(...ends)), found: true };
    }
    const kept = Math.max(0, ...this.#strings.map((string) => overlap(text, string)));
    this.#held = text.slice(text.length - kept);
    return { text: text.slice(0, text.length - kept), found: false };
  }

  /** What is held back, once no more text comes. */
  flush(): string {
    const text = this.#held;
    this.#held = '';
    return text;
  }
}

/** Characters at the end of a text that are the beginning of a string. */
function overlap(text: string, string: string): number {
  let count = Math.min(text.length, string.length - 1);
  while (count > 0 && !string.startsWith(text.slice(text.length - count))) count--;
  return count;
}
