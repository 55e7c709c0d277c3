/** Plain text for terminals: numbers, tables, lines of at most so many columns. */
import { printable } from '@cflow/format';

export const WIDTH = 100;

export function count(n: number): string {
  return n.toLocaleString('en-US', { maximumFractionDigits: 6 });
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** Binary units, two decimals: `4.50 MiB`. */
export function size(bytes: number): string {
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  return unit ? `${value.toFixed(2)} ${UNITS[unit]}` : `${bytes} B`;
}

/** MiB without the unit; below a tenth, two significant digits, so that small models do not become zeros. */
export function mib(bytes: number): string {
  const value = bytes / 2 ** 20;
  return value === 0 || value >= 0.1 ? value.toFixed(2) : String(Number(value.toPrecision(2)));
}

export function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

/** Three significant digits, at most eight characters or nine with a sign. */
export function short(value: number | null): string {
  if (value === null) return '-';
  if (value === 0) return '0';
  const magnitude = Math.abs(value);
  return magnitude >= 0.001 && magnitude < 10_000
    ? String(Number(value.toPrecision(3)))
    : value.toExponential(1);
}

/** At most `width` characters; what is left out in the middle becomes an ellipsis. */
export function clip(text: string, width: number): string {
  const characters = [...printable(text)];
  if (characters.length <= width) return characters.join('');
  const head = Math.ceil((width - 1) / 2);
  return `${characters.slice(0, head).join('')}…${characters.slice(head + 1 - width).join('')}`;
}

/** Words on lines of at most `width` characters, continued under `indent`. Longer words are clipped. */
export function wrap(text: string, width: number, indent: string): string {
  const lines: string[] = [];
  let line = '';
  for (const word of printable(text)
    .split(' ')
    .map((part) => clip(part, width - indent.length))) {
    if (line && [...line].length + 1 + [...word].length > width) {
      lines.push(line);
      line = `${indent}${word}`;
    } else line = line ? `${line} ${word}` : word;
  }
  return [...lines, line].join('\n');
}

/** `label` in a column of its own, `text` wrapped beside it. */
export function field(label: string, text: string): string {
  const pad = 13;
  const lines = wrap(text, WIDTH - pad, '').split('\n');
  return lines.map((line, i) => `${(i ? '' : label).padEnd(pad)}${line}`.trimEnd()).join('\n');
}

/** Columns, padded; those whose heading starts with `>` are right-aligned. */
export function table(headings: readonly string[], rows: readonly (readonly string[])[]): string {
  const right = headings.map((heading) => heading.startsWith('>'));
  const all = [headings.map((heading) => heading.replace('>', '')), ...rows];
  const widths = headings.map((_, column) =>
    all.reduce((most, row) => Math.max(most, [...row[column]!].length), 0),
  );
  const line = (row: readonly string[]) =>
    row
      .map((cell, column) => {
        const fill = ' '.repeat(widths[column]! - [...cell].length);
        return right[column] ? fill + cell : cell + fill;
      })
      .join('  ')
      .trimEnd();
  return all.map(line).join('\n');
}

/** `0-4, 6-10, 12`. */
export function ranges(numbers: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const n of numbers) {
    const last = runs.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([from, to]) => span(from, to)).join(', ');
}

export function span(from: number, to: number): string {
  return from === to ? `${from}` : `${from}-${to}`;
}

export function plural(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? '' : 's'}`;
}
