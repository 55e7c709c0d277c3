/** The layout of a file in few lines: a proportional bar, and runs whose repetitions are folded. */
import { fileText } from '#cli-kit/bytes.js';
import { count, plural, table, WIDTH } from '#cli-kit/text.js';
import type { InspectReport, Run, SizeKind } from './schema.js';
import { span, wrap } from './text.js';

const LETTERS: Record<SizeKind, readonly [letter: string, name: string]> = {
  attention: ['A', 'attention'],
  dense: ['D', 'dense'],
  router: ['R', 'router'],
  experts: ['X', 'experts'],
  finalNorm: ['N', 'norm'],
  embedding: ['E', 'embedding'],
  lmHead: ['H', 'head'],
  tables: ['T', 'tables'],
  metadata: ['M', 'metadata'],
  padding: ['.', 'padding'],
};
const BAR = WIDTH - 2;
/** Enough for every known model; a file whose layers are all different is cut here. */
const MAX_LINES = 24;
/** Runs of one slot: attention, dense, router, expert table, experts. */
const MAX_PERIOD = 5;

/** One letter per equal share of the file: the kind that fills most of it. */
export function bar({ layout, file }: InspectReport): string {
  const cell = file.bytes / BAR;
  let bar = '';
  let first = 0;
  for (let i = 0; i < BAR; i++) {
    const from = i * cell;
    const to = from + cell;
    while (first < layout.length && end(layout[first]!) <= from) first++;
    const weights = new Map<SizeKind, number>();
    for (let r = first; r < layout.length && layout[r]!.offset < to; r++) {
      const run = layout[r]!;
      const bytes = Math.min(to, end(run)) - Math.max(from, run.offset);
      weights.set(run.kind, (weights.get(run.kind) ?? 0) + bytes);
    }
    const [kind] = [...weights].reduce((a, b) => (b[1] > a[1] ? b : a), ['padding', 0] as [SizeKind, number]);
    bar += LETTERS[kind][0];
  }
  const used = Object.values(LETTERS).filter(([letter]) => bar.includes(letter));
  return `[${bar}]\n ${used.map((entry) => entry.join('=')).join(' ')}`;
}

function end({ offset, bytes }: Run): number {
  return offset + bytes;
}

interface Fold {
  readonly from: number;
  readonly period: number;
  readonly times: number;
}

/** Folds `attention, dense, attention, dense` into one line, wherever kind, count and bytes repeat. */
function folds(runs: readonly Run[]): Fold[] {
  const keys = runs.map(({ name, regions, bytes }) => `${name} ${regions} ${bytes}`);
  const found: Fold[] = [];
  for (let from = 0; from < runs.length; ) {
    let best: Fold = { from, period: 1, times: 1 };
    for (let period = 1; period <= MAX_PERIOD; period++) {
      let length = period;
      while (from + length < keys.length && keys[from + length] === keys[from + length - period]) length++;
      const times = Math.floor(length / period);
      if (times > 1 && times * period > best.times * best.period) best = { from, period, times };
    }
    found.push(best);
    from += best.period * best.times;
  }
  return merged(runs, found);
}

/** Neighbours that do not repeat share a line, up to one slot; what belongs to no layer stands apart. */
function merged(runs: readonly Run[], found: readonly Fold[]): Fold[] {
  const lines: Fold[] = [];
  const isLayer = (fold: Fold) => runs[fold.from]!.layers !== undefined;
  for (const fold of found) {
    const last = lines.at(-1);
    const alike = last && last.times === 1 && fold.times === 1 && isLayer(last) === isLayer(fold);
    if (alike && last.period < MAX_PERIOD) lines[lines.length - 1] = { ...last, period: last.period + 1 };
    else lines.push(fold);
  }
  return lines;
}

function label(runs: readonly Run[], { from, period, times }: Fold, index: number): string {
  const run = runs[from + index]!;
  const last = runs[from + (times - 1) * period + index]!;
  const layers = run.layers && last.layers ? ` ${span(run.layers[0], last.layers[1])}` : '';
  const each = run.name === 'experts' ? ` (${run.regions}${times > 1 ? ' each' : ''})` : '';
  return `${run.name}${layers}${each}`;
}

export function layoutLines({ layout: runs }: InspectReport): string {
  const all = folds(runs).map((fold) => {
    const first = runs[fold.from]!;
    const last = runs[fold.from + fold.period * fold.times - 1]!;
    const what = Array.from({ length: fold.period }, (_, i) => label(runs, fold, i)).join(', ');
    const text = fold.times > 1 ? `${count(fold.times)} x ${what}` : what;
    return [count(first.offset), fileText(end(last) - first.offset), text];
  });
  const shown = all.length > MAX_LINES ? all.slice(0, MAX_LINES - 1) : all;
  const widest = [0, 1].reduce((sum, i) => sum + Math.max(6, ...shown.map((row) => row[i]!.length)), 0);
  const rows = shown.flatMap(([a, b, text]) =>
    wrap(text!, WIDTH - 4 - widest, '')
      .split('\n')
      .map((line, i) => (i ? ['', '', line] : [a!, b!, line])),
  );
  const rest = all.length - shown.length;
  const more = rest ? [`… ${plural(rest, 'more line')}; see --json`] : [];
  return [...table(['>offset', '>size', 'regions'], rows), ...more].join('\n');
}
