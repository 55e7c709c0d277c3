/** A grammar as states with edges: over a byte range, over nothing, or over a call of another rule. */
import { CflowError } from '@cflow/format';
import type { Grammar, Node, Range } from './grammar.js';
import { utf8Ranges } from './utf8-ranges.js';

/** States of a grammar; beyond it, repetitions are too large to write out. */
const MAX_STATES = 200_000;

/** What leads out of a state. */
export interface State {
  /** First byte, last byte, state. */
  readonly bytes: (readonly [number, number, number])[];
  /** States that nothing separates. */
  readonly jumps: number[];
  /** The first state of a rule, and the state after it. */
  readonly calls: (readonly [number, number])[];
}

/** States of all rules together; each rule has a first and a last one. */
export interface Automaton {
  readonly states: readonly State[];
  readonly start: number;
  readonly end: number;
  /** Whether a state is the last one of a rule. */
  readonly isEnd: (state: number) => boolean;
}

/**
 * @throws CflowError USAGE for a rule that is missing or begins with itself, LIMIT_EXCEEDED for repetitions that are too large
 */
export function automatonOf(grammar: Grammar): Automaton {
  return new Builder(grammar).build();
}

class Builder {
  readonly #grammar: Grammar;
  readonly #states: State[] = [];
  readonly #ends = new Set<number>();
  readonly #rules = new Map<string, { readonly start: number; readonly end: number }>();

  constructor(grammar: Grammar) {
    this.#grammar = grammar;
  }

  build(): Automaton {
    const { rules, root } = this.#grammar;
    for (const name of rules.keys()) {
      const bounds = { start: this.#state(), end: this.#state() };
      this.#rules.set(name, bounds);
      this.#ends.add(bounds.end);
    }
    for (const [name, node] of rules) {
      const { start, end } = this.#rules.get(name)!;
      this.#between(node, start, end);
    }
    refuseLeftRecursion(this.#grammar);
    const { start, end } = this.#bounds(root);
    return { states: this.#states, start, end, isEnd: (state) => this.#ends.has(state) };
  }

  #bounds(name: string) {
    const bounds = this.#rules.get(name);
    if (bounds) return bounds;
    throw new CflowError('USAGE', `the grammar has no rule ${JSON.stringify(name)}`, { field: 'grammar' });
  }

  #state(): number {
    if (this.#states.length === MAX_STATES) {
      throw new CflowError('LIMIT_EXCEEDED', `the grammar takes more than ${MAX_STATES} states`, {
        field: 'grammar',
        limit: MAX_STATES,
        remedy: 'use smaller repetitions, or none that are bounded',
      });
    }
    return this.#states.push({ bytes: [], jumps: [], calls: [] }) - 1;
  }

  /** Connects two states so that what leads from one to the other matches the node. */
  #between(node: Node, from: number, to: number): void {
    switch (node.kind) {
      case 'chars':
        for (const range of node.ranges) for (const path of utf8Ranges(range)) this.#bytes(path, from, to);
        return;
      case 'sequence': {
        const last = node.items.length - 1;
        if (last < 0) this.#states[from]!.jumps.push(to);
        let at = from;
        node.items.forEach((item, i) => {
          const next = i === last ? to : this.#state();
          this.#between(item, at, next);
          at = next;
        });
        return;
      }
      case 'choice':
        for (const item of node.items) this.#between(item, from, to);
        return;
      case 'repeat':
        this.#repeat(node, from, to);
        return;
      case 'rule':
        this.#states[from]!.calls.push([this.#bounds(node.name).start, to]);
    }
  }

  #bytes(path: readonly Range[], from: number, to: number): void {
    let at = from;
    path.forEach(([first, last], i) => {
      const next = i === path.length - 1 ? to : this.#state();
      this.#states[at]!.bytes.push([first, last, next]);
      at = next;
    });
  }

  #repeat({ item, min, max }: Extract<Node, { kind: 'repeat' }>, from: number, to: number): void {
    let at = from;
    const once = () => {
      const next = this.#state();
      this.#between(item, at, next);
      at = next;
    };
    for (let i = 0; i < min; i++) once();
    if (max === Number.POSITIVE_INFINITY) {
      // A state of its own: whatever else leads to `at` or away from it must not be repeated.
      const loop = this.#state();
      this.#states[at]!.jumps.push(loop);
      this.#between(item, loop, loop);
      this.#states[loop]!.jumps.push(to);
      return;
    }
    for (let i = min; i < max; i++) {
      this.#states[at]!.jumps.push(to);
      once();
    }
    this.#states[at]!.jumps.push(to);
  }
}

/** Rules that begin with themselves would be called without end. */
function refuseLeftRecursion({ rules }: Grammar): void {
  const empty = emptyRules(rules);
  const visited = new Set<string>();
  for (const start of rules.keys()) {
    // Depth first, without recursion: names of rules come from outside, and may form long chains.
    const path: { readonly name: string; readonly next: string[] }[] = [];
    const enter = (name: string) => {
      visited.add(name);
      path.push({ name, next: [...firstRules(rules.get(name)!, empty)] });
    };
    if (!visited.has(start)) enter(start);
    while (path.length > 0) {
      const name = path.at(-1)!.next.pop();
      if (name === undefined) path.pop();
      else if (path.some((each) => each.name === name)) {
        throw new CflowError('USAGE', `rule ${JSON.stringify(name)} of the grammar begins with itself`, {
          field: 'grammar',
          remedy: 'write a repetition instead: a ::= b (c)* for a ::= b | a c',
        });
      } else if (!visited.has(name)) enter(name);
    }
  }
}

/** Rules that match nothing at all. */
function emptyRules(rules: Grammar['rules']): ReadonlySet<string> {
  const empty = new Set<string>();
  for (let before = -1; before < empty.size; ) {
    before = empty.size;
    for (const [name, node] of rules) if (isEmpty(node, empty)) empty.add(name);
  }
  return empty;
}

function isEmpty(node: Node, empty: ReadonlySet<string>): boolean {
  if (node.kind === 'chars') return false;
  if (node.kind === 'rule') return empty.has(node.name);
  if (node.kind === 'repeat') return node.min === 0 || isEmpty(node.item, empty);
  const holds = (item: Node) => isEmpty(item, empty);
  return node.kind === 'sequence' ? node.items.every(holds) : node.items.some(holds);
}

/** Rules that a node may begin with. */
function* firstRules(node: Node, empty: ReadonlySet<string>): Generator<string> {
  if (node.kind === 'rule') yield node.name;
  else if (node.kind === 'repeat') yield* firstRules(node.item, empty);
  else if (node.kind === 'choice') for (const item of node.items) yield* firstRules(item, empty);
  else if (node.kind === 'sequence')
    for (const item of node.items) {
      yield* firstRules(item, empty);
      if (!isEmpty(item, empty)) return;
    }
}
