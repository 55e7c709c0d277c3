/** What users type is text: control tokens in messages are marked, so that they never become control tokens. */
import type { RenderMessage } from './renderer.js';

/** Noncharacters, which no text interchanges (Unicode, chapter 23.7). */
const OPEN = '\ufdd0';
const CLOSE = '\ufdd1';
/** Prefix of a token that the template itself wrote, in the vocabulary of `ControlTokens.alias`. */
const ALIAS = '\ufdd2';
const MARKS = /[\ufdd0-\ufdd2]/g;

const escaped = (text: string) => text.replace(/[.*+?^${}()|[\]\\/-]/g, '\\$&');

/** A token of a tokenizer that steers the conversation. */
export interface ControlToken {
  readonly content: string;
  /** Whether answers have it only as a control token; others, like the end of a thought, are part of their text. */
  readonly special: boolean;
}

/** Fields of messages that are no text of anybody. */
const NAMES = new Set(['role', 'type', 'id']);

/** Control tokens of a tokenizer. */
export class ControlTokens {
  readonly #any: RegExp | undefined;
  readonly #special: RegExp | undefined;
  readonly #marked: RegExp | undefined;
  readonly #contents: ReadonlySet<string>;

  constructor(tokens: readonly ControlToken[]) {
    this.#contents = new Set(tokens.map(({ content }) => content));
    this.#any = eitherOf(tokens);
    this.#special = eitherOf(tokens.filter(({ special }) => special));
    const any = this.#any?.source;
    this.#marked =
      any === undefined ? undefined : new RegExp(`${OPEN}(${any})${CLOSE}|(${any})|[${OPEN}${CLOSE}]`, 'g');
  }

  has(content: string): boolean {
    return this.#contents.has(content);
  }

  /** Messages in which control tokens are marked; the same ones where there are none. */
  mark(messages: readonly RenderMessage[]): {
    readonly messages: readonly RenderMessage[];
    readonly found: boolean;
  } {
    let found = false;
    const shape = (value: unknown, tokens: RegExp | undefined): unknown => {
      if (typeof value === 'string') {
        const clean = value.replace(MARKS, '\ufffd');
        const marked = tokens ? clean.replace(tokens, (token) => OPEN + token + CLOSE) : clean;
        found ||= marked !== value;
        return marked;
      }
      if (Array.isArray(value)) return value.map((each) => shape(each, tokens));
      if (typeof value !== 'object' || value === null) return value;
      const entries = Object.entries(value);
      return Object.fromEntries(
        entries.map(([key, each]) => [key, NAMES.has(key) ? each : shape(each, tokens)]),
      );
    };
    const shaped = messages.map(
      (message) => shape(message, message.role === 'assistant' ? this.#special : this.#any) as RenderMessage,
    );
    return { messages: found ? shaped : messages, found };
  }

  /** A rendered text in which the template's tokens have their alias, and those of users are text. */
  alias(rendered: string): string {
    if (!this.#marked) return rendered;
    return rendered.replace(this.#marked, (_, typed?: string, written?: string) =>
      typed !== undefined ? typed : written !== undefined ? aliasOf(written) : '',
    );
  }
}

/** An expression for any of the tokens, the longest first; undefined without tokens. */
function eitherOf(tokens: readonly ControlToken[]): RegExp | undefined {
  const contents = tokens.map(({ content }) => content).filter((content) => content !== '');
  contents.sort((a, b) => b.length - a.length);
  return contents.length === 0 ? undefined : new RegExp(contents.map(escaped).join('|'), 'g');
}

/** What stands for a token that the template wrote. */
export function aliasOf(token: string): string {
  return ALIAS + token;
}
