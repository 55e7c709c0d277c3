/** What is used of @huggingface/jinja. Its declarations import without file extensions, so they do not resolve here. */
import * as library from '@huggingface/jinja';

/** A value of the interpreter. */
export interface Value {
  readonly type: string;
  readonly value: unknown;
  __bool__(): { readonly value: boolean };
  toString(): string;
}

/** A node of a program; its fields depend on its type. */
export interface Node {
  readonly type: string;
  readonly [field: string]: unknown;
}

/** Variables of a block. */
export interface Scope {
  readonly tests: ReadonlyMap<string, (...values: Value[]) => boolean>;
  set(name: string, value: unknown): Value;
}

export interface Token {
  readonly value: string;
  readonly type: string;
}

interface Evaluator {
  readonly global: Scope;
  run(program: Node): Value;
  evaluate(node: Node | undefined, scope: Scope): Value;
}

export const Environment = library.Environment as unknown as new (parent?: Scope) => Scope;
export const Interpreter = library.Interpreter as unknown as new (scope: Scope) => Evaluator;
export const tokenize = library.tokenize as unknown as (source: string) => Token[];
export const parse = library.parse as unknown as (tokens: readonly Token[]) => Node;
