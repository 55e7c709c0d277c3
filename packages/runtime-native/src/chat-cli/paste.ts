/** Bracketed paste: pasted line ends do not send a message. */
import { Transform } from 'node:stream';

/** What a terminal sends around pasted text once it is asked to. */
const BEGIN = '\x1b[200~';
const END = '\x1b[201~';
/** Asks a terminal to do so, and not to. */
export const PASTE_ON = '\x1b[?2004h';
export const PASTE_OFF = '\x1b[?2004l';

/** Signs that stand for characters which readline would act on. */
const SIGNS: readonly (readonly [RegExp, string, string])[] = [
  [/\r\n?|\n/g, '\u2424', '\n'],
  [/\t/g, '\u2409', '\t'],
];

/** A line as it was pasted. */
export function unpasted(line: string): string {
  return SIGNS.reduce((text, [, sign, character]) => text.replaceAll(sign, character), line);
}

/** A text as `unpasted` takes it, for the history. */
export function pasted(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: a paste must not steer the terminal
  const plain = text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\x7f]/g, '');
  return SIGNS.reduce((line, [character, sign]) => line.replace(character, sign), plain);
}

/** Input of a terminal in which pasted text is one line. */
export class PasteFilter extends Transform {
  #held = '';
  #pasting = false;
  readonly #decoder = new TextDecoder();

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    let text = this.#held + this.#decoder.decode(chunk, { stream: true });
    this.#held = '';
    for (;;) {
      const marker = this.#pasting ? END : BEGIN;
      const at = text.indexOf(marker);
      if (at < 0) break;
      this.#give(text.slice(0, at));
      text = text.slice(at + marker.length);
      this.#pasting = !this.#pasting;
    }
    const kept = heldBack(text, this.#pasting);
    this.#held = text.slice(text.length - kept);
    this.#give(text.slice(0, text.length - kept));
    done();
  }

  override _flush(done: () => void): void {
    this.#give(this.#held);
    done();
  }

  #give(text: string): void {
    if (text !== '') this.push(this.#pasting ? pasted(text) : text);
  }
}

/** Characters at the end that may begin a marker. A lone escape is the key, unless it is in a paste. */
function heldBack(text: string, pasting: boolean): number {
  const marker = pasting ? END : BEGIN;
  const least = pasting ? 1 : 2;
  for (let count = Math.min(marker.length - 1, text.length); count >= least; count--)
    if (marker.startsWith(text.slice(text.length - count))) return count;
  // A carriage return of which the line feed comes in the next piece.
  return pasting && text.endsWith('\r') ? 1 : 0;
}
