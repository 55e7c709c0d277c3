/** Plain text for terminals: numbers, lines of at most so many columns. */

import { printable } from '@cflow/format';
import { WIDTH } from '#cli-kit/text.js';

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
