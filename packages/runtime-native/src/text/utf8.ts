/** Where characters end in a stream of UTF-8 bytes: Table 3-7 of the Unicode standard as a state machine. */
export class Utf8Boundary {
  /** Continuation bytes that the character still needs. */
  #missing = 0;
  /** Range of the next one: the second byte of some characters has a narrower range. */
  #low = 0x80;
  #high = 0xbf;

  /** Whether the bytes so far end inside a character that can still become valid. */
  get inside(): boolean {
    return this.#missing > 0;
  }

  reset(): void {
    this.#missing = 0;
  }

  push(byte: number): void {
    const continues = this.#missing > 0 && byte >= this.#low && byte <= this.#high;
    this.#low = 0x80;
    this.#high = 0xbf;
    if (continues) this.#missing--;
    else this.#start(byte);
  }

  #start(byte: number): void {
    if (byte >= 0xc2 && byte <= 0xdf) this.#missing = 1;
    else if (byte >= 0xe0 && byte <= 0xef) this.#missing = 2;
    else if (byte >= 0xf0 && byte <= 0xf4) this.#missing = 3;
    else this.#missing = 0;
    if (byte === 0xe0) this.#low = 0xa0;
    else if (byte === 0xed) this.#high = 0x9f;
    else if (byte === 0xf0) this.#low = 0x90;
    else if (byte === 0xf4) this.#high = 0x8f;
  }
}
