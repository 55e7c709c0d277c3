/** From a template's source to its program: what jinja2's lexer does before, and statements that the library lacks. */
import { type Node, parse, type Token, tokenize } from './library.js';

/** The loop variable that marks a `with` statement. */
export const WITH = '__with__';

/**
 * The program of a template, with `trim_blocks` and `lstrip_blocks`, as transformers sets them.
 * @throws Error that names the construct that is not known
 */
export function programOf(source: string): Node {
  return parse(rewriteWith(tokenize(prepared(source))));
}

/** jinja2 makes "\n" of all line ends, and drops the last one. */
function prepared(source: string): string {
  const text = source.replace(/\r\n|\r/g, '\n').replace(/\n$/, '');
  return trimBlocks(lstripBlocks(rawAsText(text)));
}

/** White space before a block at the start of its line goes, unless the block begins with `+`. */
function lstripBlocks(text: string): string {
  return text.replace(/^[ \t]*(\{[%#])(?!\+)/gm, '$1').replace(/\{([%#])\+/g, '{$1');
}

/** The line end behind a block goes, unless the block ends with `+`. */
function trimBlocks(text: string): string {
  return text.replace(/([^+][%#]\})\n/g, '$1').replace(/\+([%#]\})/g, '$1');
}

const RAW = /(^[ \t]*)?\{%([-+]?)\s*raw\s*(-?)%\}([\s\S]*?)\{%([-+]?)\s*endraw\s*(-?)%\}/gm;

/** What is between `raw` and `endraw` as an expression that gives it; the line end behind `raw` stays, as in jinja2. */
function rawAsText(text: string): string {
  return text.replace(
    RAW,
    (_, indent = '', before: string, start: string, body: string, end: string, after: string) => {
      const ended = end === '-' ? body.trimEnd() : end === '+' ? body : body.replace(/\n[ \t]+$/, '\n');
      const content = start ? ended.trimStart() : ended;
      const literal = content.replace(
        /[\\"\n{}%#]/g,
        (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
      );
      const open = before === '-' ? '{{-' : before === '+' ? `${indent}{{` : '{{';
      // A comment takes the line end behind it, as `endraw` does.
      return after ? `${open} "${literal}" -}}` : `${open} "${literal}" }}{##}`;
    },
  );
}

/** `{% with a = 1, b = 2 %}` becomes a loop over one item, which has a scope of its own, that sets a and b. */
function rewriteWith(tokens: readonly Token[]): Token[] {
  const result: Token[] = [];
  for (let i = 0; i < tokens.length; i++) {
    const [token, name] = [tokens[i]!, tokens[i + 1]];
    const statement = token.type === 'OpenStatement' && name?.type === 'Identifier' ? name.value : undefined;
    if (statement === 'endwith') {
      result.push(token, make('endfor', 'Identifier'));
      i++;
    } else if (statement === 'with') {
      const end = tokens.findIndex((each, at) => at > i && each.type === 'CloseStatement');
      result.push(...scope(tokens.slice(i + 2, end)));
      i = end;
    } else result.push(token);
  }
  return result;
}

const make = (value: string, type: string): Token => ({ value, type });

function scope(assignments: readonly Token[]): Token[] {
  const word = (value: string) => make(value, 'Identifier');
  const [open, close, comma] = [
    make('{%', 'OpenStatement'),
    make('%}', 'CloseStatement'),
    make(',', 'Comma'),
  ] as const;
  const list = [make('[', 'OpenSquareBracket'), make('0', 'NumericLiteral'), make(']', 'CloseSquareBracket')];
  const loop = [open, word('for'), word(WITH), word('in'), ...list, close];
  const pairs = separated(assignments);
  if (pairs.length === 0) return loop;
  const values = pairs.flatMap((pair, i) => [
    ...(i ? [comma] : []),
    make('(', 'OpenParen'),
    ...pair.slice(2),
    make(')', 'CloseParen'),
  ]);
  const names = pairs.flatMap((pair, i) => [...(i ? [comma] : []), pair[0]!]);
  return [...loop, open, word('set'), ...names, make('=', 'Equals'), ...values, close];
}

/** The parts between commas that are in no bracket. */
function separated(tokens: readonly Token[]): Token[][] {
  const parts: Token[][] = [];
  let depth = 0;
  for (const token of tokens) {
    if (/^Open/.test(token.type)) depth++;
    if (/^Close/.test(token.type)) depth--;
    if (parts.length === 0 || (token.type === 'Comma' && depth === 0)) parts.push([]);
    if (token.type !== 'Comma' || depth > 0) parts.at(-1)!.push(token);
  }
  return parts;
}
