/** Grammars that answers must follow: a mask over the logits of each token. */
import { CflowError } from '@cflow/format';
import { type Check, shown } from '@cflow/format/node';
import type { LogitsProcessor } from '../sampling/processors.js';
import type { TextTokenizer } from '../text/tokenizer.js';
import { automatonOf } from './automaton.js';
import { ebnfGrammar } from './ebnf.js';
import { type Grammar, pruned } from './grammar.js';
import { schemaGrammar } from './json/schema.js';
import { Machine, NOWHERE, type Position } from './machine.js';
import { regexNode } from './regex.js';
import { type Vocabulary, vocabularyOf } from './vocabulary.js';

/** What an answer must be, in one of three notations. */
export type GrammarSpec =
  /** A JSON text that validates by this schema: an object, or true for any JSON. */
  | { readonly jsonSchema: unknown }
  /** A text that a regular expression (ECMAScript, flag u) matches as a whole. */
  | { readonly regex: string }
  /** A text of the rule `root` of a grammar in the notation of llama.cpp's GBNF. */
  | { readonly ebnf: string };

const NOTATIONS = {
  jsonSchema: schemaGrammar,
  regex: (pattern: unknown): Grammar => ({
    root: 'root',
    rules: new Map([['root', regexNode(String(pattern), 'whole', 'grammar.regex')]]),
  }),
  ebnf: (source: unknown) => ebnfGrammar(String(source)),
} as const;

/** Check of a `GrammarSpec`. */
export const GRAMMAR_CHECK: Check = {
  holds: (value) => {
    if (typeof value !== 'object' || value === null) return false;
    const [only, ...others] = Object.entries(value).filter(([, each]) => each !== undefined);
    if (!only || others.length > 0 || !Object.hasOwn(NOTATIONS, only[0])) return false;
    return only[0] === 'jsonSchema' || typeof only[1] === 'string';
  },
  expected: 'an object with one of jsonSchema, regex and ebnf',
};

/** Masks to keep for each tokenizer and grammar. */
const MAX_MASKS = 256;

/** A grammar for the tokens of one vocabulary; any number of answers may follow it. */
export class Constraint {
  readonly #machine: Machine;
  readonly #vocabulary: Vocabulary;
  readonly #endIds: ReadonlySet<number>;
  readonly #masks = new Map<Position, Uint32Array>();

  /** @param endIds tokens that end a text: allowed where the grammar allows an end */
  constructor(grammar: Grammar, vocabulary: Vocabulary, endIds: ReadonlySet<number>) {
    const possible = pruned(grammar);
    if (!possible) throw new CflowError('UNSUPPORTED', 'no text follows the grammar', { field: 'grammar' });
    this.#machine = new Machine(automatonOf(possible));
    this.#vocabulary = vocabulary;
    this.#endIds = endIds;
  }

  /** Rules out what does not follow the grammar; for one answer. */
  processor(): LogitsProcessor {
    let position: Position | undefined;
    let seen = 0;
    return (logits, { ids, promptLength }) => {
      let number = this.#machine.begin(position);
      for (; promptLength + seen < ids.length; seen++)
        number = this.#advance(number, ids[promptLength + seen]!);
      position = this.#machine.position(number);
      const mask = this.#mask(position, number);
      for (let id = 0; id < logits.length; id++)
        if (((mask[id >>> 5] ?? 0) & (1 << (id & 31))) === 0) logits[id] = Number.NEGATIVE_INFINITY;
    };
  }

  #advance(from: number, id: number): number {
    const next = this.#vocabulary.advance(this.#machine, from, id);
    if (next !== NOWHERE) return next;
    throw new CflowError('INTERNAL', `token ${id} was generated against the grammar`);
  }

  /** One bit for each token that may come next. */
  #mask(position: Position, number: number): Uint32Array {
    const known = this.#masks.get(position);
    if (known) return known;
    const mask = new Uint32Array((this.#vocabulary.size + 31) >>> 5);
    const allow = (id: number) => {
      mask[id >>> 5]! |= 1 << (id & 31);
    };
    this.#vocabulary.eachAllowed(this.#machine, number, allow);
    // An end-of-text token ends a text, whatever bytes it has.
    for (const id of this.#endIds) mask[id >>> 5]! &= ~(1 << (id & 31));
    if (position.complete) for (const id of this.#endIds) if (id < this.#vocabulary.size) allow(id);
    if (mask.every((bits) => bits === 0))
      throw new CflowError('UNSUPPORTED', 'no token of the vocabulary continues the grammar here', {
        field: 'grammar',
        remedy: 'allow only characters that the tokenizer can spell',
      });
    if (this.#masks.size >= MAX_MASKS) this.#masks.delete(this.#masks.keys().next().value!);
    this.#masks.set(position, mask);
    return mask;
  }
}

/** Grammars to keep for each tokenizer. */
const MAX_CONSTRAINTS = 8;
const constraints = new WeakMap<TextTokenizer, Map<string, Constraint>>();

/**
 * The constraint for a grammar; kept, for the next answer is often of the same.
 * @throws CflowError USAGE for what is no grammar or for a model without end-of-text tokens; UNSUPPORTED; LIMIT_EXCEEDED
 */
export async function constraintFor(
  spec: GrammarSpec,
  tokenizer: TextTokenizer,
  endIds: ReadonlySet<number>,
): Promise<Constraint> {
  if (endIds.size === 0)
    throw new CflowError('UNSUPPORTED', 'the model names no end-of-text token, which ends a grammar', {
      field: 'grammar',
    });
  const kept = constraints.get(tokenizer) ?? new Map<string, Constraint>();
  constraints.set(tokenizer, kept);
  const key = keyOf(spec, endIds);
  const known = kept.get(key);
  const constraint = known ?? new Constraint(grammarOf(spec), await vocabularyOf(tokenizer), endIds);
  kept.delete(key);
  kept.set(key, constraint);
  if (kept.size > MAX_CONSTRAINTS) kept.delete(kept.keys().next().value!);
  return constraint;
}

/** The grammar of a specification. @throws CflowError as `constraintFor` */
export function grammarOf(spec: GrammarSpec): Grammar {
  const [[notation, source]] = Object.entries(spec) as [[keyof typeof NOTATIONS, unknown]];
  return NOTATIONS[notation](source);
}

function keyOf(spec: GrammarSpec, endIds: ReadonlySet<number>): string {
  try {
    return JSON.stringify([spec, ...endIds]);
  } catch (cause) {
    const problem = `${shown(spec)} is not JSON: ${(cause as Error).message.split('\n')[0]}`;
    throw new CflowError('USAGE', problem, { field: 'grammar', cause });
  }
}
