/** Grammars as trees: what regular expressions, EBNF and JSON schemas become. */

/** Code points, first and last. */
export type Range = readonly [number, number];

/** A part of a grammar. */
export type Node =
  | { readonly kind: 'chars'; readonly ranges: readonly Range[] }
  | { readonly kind: 'sequence'; readonly items: readonly Node[] }
  | { readonly kind: 'choice'; readonly items: readonly Node[] }
  | { readonly kind: 'repeat'; readonly item: Node; readonly min: number; readonly max: number }
  | { readonly kind: 'rule'; readonly name: string };

/** Rules by name, one of them the root. */
export interface Grammar {
  readonly root: string;
  readonly rules: ReadonlyMap<string, Node>;
}

const LAST = 0x10ffff;
const SURROGATES: Range = [0xd800, 0xdfff];

/** Nothing, which everything matches. */
export const EMPTY: Node = { kind: 'sequence', items: [] };
/** What nothing matches. */
export const NEVER: Node = { kind: 'choice', items: [] };

/** One code point out of ranges; UTF-8 has no surrogates. */
export function chars(...ranges: readonly Range[]): Node {
  return { kind: 'chars', ranges: without(sorted(ranges), [SURROGATES]) };
}

/** A text as it stands. */
export function text(value: string): Node {
  return sequence(...Array.from(value, (c) => chars([c.codePointAt(0)!, c.codePointAt(0)!] satisfies Range)));
}

export function sequence(...items: readonly Node[]): Node {
  return items.length === 1 ? items[0]! : { kind: 'sequence', items };
}

export function choice(...items: readonly Node[]): Node {
  return items.length === 1 ? items[0]! : { kind: 'choice', items };
}

export function repeat(item: Node, min: number, max = Number.POSITIVE_INFINITY): Node {
  return { kind: 'repeat', item, min, max };
}

export const optional = (item: Node): Node => repeat(item, 0, 1);
export const rule = (name: string): Node => ({ kind: 'rule', name });

/** Every code point. */
export const ANY: readonly Range[] = [[0, LAST]];

/** Ranges in order, those that touch joined. */
export function sorted(ranges: readonly Range[]): Range[] {
  const joined: [number, number][] = [];
  for (const [first, last] of [...ranges].sort((a, b) => a[0] - b[0])) {
    const before = joined.at(-1);
    if (before && first <= before[1] + 1) before[1] = Math.max(before[1], last);
    else joined.push([first, last]);
  }
  return joined;
}

/** Code points of `ranges` that are in none of `others`; both sorted. */
export function without(ranges: readonly Range[], others: readonly Range[]): Range[] {
  return others.reduce<readonly Range[]>(
    (left, [first, last]) =>
      left.flatMap(([from, to]): Range[] => [
        ...(from < first ? [[from, Math.min(to, first - 1)] as const] : []),
        ...(to > last ? [[Math.max(from, last + 1), to] as const] : []),
      ]),
    ranges,
  ) as Range[];
}

/** All code points but these. */
export const complement = (ranges: readonly Range[]): Range[] => without(ANY, sorted(ranges));

/** The same tree with its characters replaced. */
export function mapChars(node: Node, replace: (ranges: readonly Range[]) => Node): Node {
  switch (node.kind) {
    case 'chars':
      return replace(node.ranges);
    case 'sequence':
    case 'choice':
      return { kind: node.kind, items: node.items.map((item) => mapChars(item, replace)) };
    case 'repeat':
      return { ...node, item: mapChars(node.item, replace) };
    case 'rule':
      return node;
  }
}

/**
 * The grammar without alternatives that can never be completed, so that no text begins with one; undefined where nothing at
 * all completes.
 */
export function pruned({ root, rules }: Grammar): Grammar | undefined {
  const live = new Set<string>();
  for (let before = -1; before < live.size; ) {
    before = live.size;
    for (const [name, node] of rules) if (!live.has(name) && completes(node, live)) live.add(name);
  }
  if (!live.has(root)) return undefined;
  const kept = [...rules].filter(([name]) => live.has(name));
  return { root, rules: new Map(kept.map(([name, node]) => [name, prune(node, live)])) };
}

function completes(node: Node, live: ReadonlySet<string>): boolean {
  if (node.kind === 'chars') return node.ranges.length > 0;
  if (node.kind === 'rule') return live.has(node.name);
  if (node.kind === 'repeat') return node.min === 0 || completes(node.item, live);
  const holds = (item: Node) => completes(item, live);
  return node.kind === 'sequence' ? node.items.every(holds) : node.items.some(holds);
}

function prune(node: Node, live: ReadonlySet<string>): Node {
  if (node.kind === 'repeat')
    return completes(node.item, live) ? { ...node, item: prune(node.item, live) } : EMPTY;
  if (node.kind !== 'sequence' && node.kind !== 'choice') return node;
  const items = node.kind === 'choice' ? node.items.filter((item) => completes(item, live)) : node.items;
  return { kind: node.kind, items: items.map((item) => prune(item, live)) };
}
