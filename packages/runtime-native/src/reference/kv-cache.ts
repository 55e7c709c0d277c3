const FIRST_CAPACITY = 16;

/** Keys and values of one attention: [position, width] each. With a window it is a ring of the last `window` positions. */
export class KvCache {
  readonly width: number;
  readonly #limit: number;
  #keys: Float32Array;
  #values: Float32Array;
  #capacity: number;
  #length = 0;
  /** The most positions that there were since the cache was empty. */
  #written = 0;

  constructor(width: number, window = Number.POSITIVE_INFINITY) {
    this.width = width;
    this.#limit = window;
    this.#capacity = Math.min(FIRST_CAPACITY, window);
    this.#keys = new Float32Array(this.#capacity * width);
    this.#values = new Float32Array(this.#capacity * width);
  }

  /** Positions appended so far. */
  get length(): number {
    return this.#length;
  }

  /** Positions for which there is memory. */
  get capacity(): number {
    return this.#capacity;
  }

  get keys(): Float32Array {
    return this.#keys;
  }

  get values(): Float32Array {
    return this.#values;
  }

  /** Where the row of `position` starts in `keys` and `values`. A ring never grows, so the modulus holds throughout. */
  offset(position: number): number {
    return (position % this.#capacity) * this.width;
  }

  /** Adds the key and value of the next position, [width] each; in a window, in the place of the oldest. */
  append(key: Float32Array, value: Float32Array): void {
    if (this.#length === this.#capacity && this.#capacity < this.#limit) this.#grow();
    const at = this.offset(this.#length++);
    this.#written = Math.max(this.#written, this.#length);
    this.#keys.set(key, at);
    this.#values.set(value, at);
  }

  /** Whether the next token of a sequence of `position` tokens would find what it sees: a ring overwrites. */
  reaches(position: number): boolean {
    const oldest = Math.max(0, position + 1 - this.#limit);
    return position === 0 || oldest >= this.#written - this.#limit;
  }

  /** Goes back to the first `position` positions, which `reaches`. */
  truncate(position: number): void {
    this.#length = position;
    if (position === 0 || this.#written <= this.#limit) this.#written = position;
  }

  /** Takes over the contents of a cache of the same width and window. */
  copyFrom(other: KvCache): void {
    this.#keys = other.#keys.slice();
    this.#values = other.#values.slice();
    this.#capacity = other.#capacity;
    this.#length = other.#length;
    this.#written = other.#written;
  }

  #grow(): void {
    this.#capacity = Math.min(2 * this.#capacity, this.#limit);
    this.#keys = enlarged(this.#keys, this.#capacity * this.width);
    this.#values = enlarged(this.#values, this.#capacity * this.width);
  }
}

function enlarged(old: Float32Array, length: number): Float32Array {
  const bigger = new Float32Array(length);
  bigger.set(old);
  return bigger;
}
