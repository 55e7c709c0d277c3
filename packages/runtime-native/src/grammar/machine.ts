/** Recognizes a grammar byte by byte: a pushdown automaton whose sets of configurations are made once and kept. */
import { CflowError } from '@cflow/format';
import type { Automaton } from './automaton.js';

/** Rules that were called and have not ended: where the last one returns to, and those below it. */
interface Stack {
  readonly id: number;
  readonly returnsTo: number;
  readonly below: Stack | undefined;
}

/** Everything a grammar may be doing after some bytes. */
export interface Position {
  /** Whether the text may end here. */
  readonly complete: boolean;
  /** States with a stack each, that wait for a byte. */
  readonly configurations: readonly (readonly [number, Stack | undefined])[];
}

/** Positions to keep before a token, 1 KiB each, and their configurations together. */
const MAX_POSITIONS = 8192;
const MAX_KEPT = 250_000;
/** In the table of positions by position and byte. */
const UNKNOWN = 0;
/** What `Machine.step` returns where a byte is not allowed. */
export const NOWHERE = -1;
/** Configurations of one position. */
const MAX_CONFIGURATIONS = 4096;
/** Configurations to look at for one token: less than a second, and some 100 MB. */
const MAX_WORK = 1_000_000;

/**
 * Steps through a grammar, for any number of texts. Positions have numbers, which hold for one token: until `begin` is called
 * again.
 */
export class Machine {
  readonly #automaton: Automaton;
  /** States after which a rule does nothing more. */
  readonly #tail: Uint8Array;
  #stacks = new Map<number, Stack>();
  #stackIds = 1;
  #positions: Position[] = [];
  #numbers = new Map<string, number>();
  /** 256 entries for each position. */
  #next = new Int32Array(0);
  #kept = 0;
  #work = 0;

  constructor(automaton: Automaton) {
    this.#automaton = automaton;
    this.#tail = tailsOf(automaton);
    this.#forget();
  }

  /** The number of a position before a token; absent = before the first. The work for the token is bounded. */
  begin(position?: Position): number {
    this.#work = 0;
    if (this.#positions.length > MAX_POSITIONS || this.#kept > MAX_KEPT) this.#forget();
    return position ? this.#number(position) : this.#closure([[this.#automaton.start, undefined]]);
  }

  /** A position by its number. */
  position(number: number): Position {
    return this.#positions[number]!;
  }

  /** The position after a byte, or `NOWHERE`. @throws CflowError LIMIT_EXCEEDED for a grammar that can be read in too many ways */
  step(from: number, byte: number): number {
    const known = this.#next[from * 256 + byte]!;
    return known === UNKNOWN ? this.#explore(from, byte) : known;
  }

  #forget(): void {
    this.#stacks = new Map();
    this.#numbers = new Map();
    this.#kept = 0;
    this.#next = new Int32Array(64 * 256);
    // No position has the number of what is unknown.
    this.#positions = [{ complete: false, configurations: [] }];
  }

  #explore(from: number, byte: number): number {
    const { configurations } = this.#positions[from]!;
    const reached: [number, Stack | undefined][] = [];
    for (const [state, stack] of configurations) {
      for (const [first, last, next] of this.#automaton.states[state]!.bytes)
        if (byte >= first && byte <= last) reached.push([next, stack]);
    }
    this.#spend(configurations.length);
    const number = reached.length === 0 ? NOWHERE : this.#closure(reached);
    this.#next[from * 256 + byte] = number;
    return number;
  }

  /** Follows jumps, calls and returns up to the states that wait for a byte. */
  #closure(open: [number, Stack | undefined][]): number {
    const { states, isEnd } = this.#automaton;
    const seen = new Set<number>();
    const waiting: (readonly [number, Stack | undefined])[] = [];
    let complete = false;
    for (let top = open.pop(); top; top = open.pop()) {
      const [at, stack] = top;
      const key = (stack?.id ?? 0) * states.length + at;
      if (seen.has(key)) continue;
      seen.add(key);
      if (isEnd(at)) {
        if (stack) open.push([stack.returnsTo, stack.below]);
        else complete = true;
      }
      const { bytes, jumps, calls } = states[at]!;
      if (bytes.length > 0) waiting.push(top);
      for (const next of jumps) open.push([next, stack]);
      for (const [start, after] of calls)
        open.push([start, this.#tail[after] === 1 ? stack : this.#push(after, stack)]);
    }
    this.#spend(seen.size);
    if (waiting.length > MAX_CONFIGURATIONS) tooAmbiguous();
    return this.#number({ configurations: waiting, complete });
  }

  #push(returnsTo: number, below: Stack | undefined): Stack {
    const key = (below?.id ?? 0) * this.#automaton.states.length + returnsTo;
    const known = this.#stacks.get(key);
    if (known) return known;
    const stack = { id: this.#stackIds++, returnsTo, below };
    this.#stacks.set(key, stack);
    return stack;
  }

  #number(position: Position): number {
    const names = position.configurations.map(([state, stack]) => `${state}.${stack?.id ?? 0}`).sort();
    const key = `${position.complete} ${names.join(' ')}`;
    const known = this.#numbers.get(key);
    if (known !== undefined) return known;
    const number = this.#positions.push(position) - 1;
    this.#kept += position.configurations.length;
    this.#numbers.set(key, number);
    if (this.#next.length < this.#positions.length * 256) {
      const grown = new Int32Array(2 * this.#next.length);
      grown.set(this.#next);
      this.#next = grown;
    }
    return number;
  }

  #spend(work: number): void {
    this.#work += work;
    if (this.#work > MAX_WORK) tooAmbiguous();
  }
}

function tooAmbiguous(): never {
  throw new CflowError('LIMIT_EXCEEDED', 'the grammar can be read in too many ways at once', {
    field: 'grammar',
    remedy: 'let alternatives differ in their first characters',
  });
}

/** States from which a rule ends without another byte or call, so that who called it need not be remembered. */
function tailsOf({ states, isEnd }: Automaton): Uint8Array {
  const tail = new Uint8Array(states.length);
  const waiting = states.map((_, i) => i).filter(isEnd);
  const sources = new Map<number, number[]>();
  states.forEach(({ bytes, jumps, calls }, i) => {
    const [only] = jumps;
    if (jumps.length !== 1 || bytes.length + calls.length > 0 || only === i) return;
    sources.set(only!, [...(sources.get(only!) ?? []), i]);
  });
  for (let at = waiting.pop(); at !== undefined; at = waiting.pop()) {
    tail[at] = 1;
    waiting.push(...(sources.get(at) ?? []));
  }
  return tail;
}
