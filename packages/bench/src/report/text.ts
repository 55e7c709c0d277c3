import { memoryText } from '#cli-kit/bytes.js';
import { plural, table } from '#cli-kit/text.js';
import type { BenchResult, Machine, Measured, Metric, Table } from '../runner/result.js';

/** Formats figures and machines, for pages and terminals. */

/** Three or four significant digits; thousands grouped. */
export function significant(value: number): string {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const digits = 2 - Math.floor(Math.log10(Math.abs(value)));
  const fixed = value.toFixed(Math.min(Math.max(0, digits), 12));
  return Number(fixed).toLocaleString('en-US', {
    minimumFractionDigits: fixed.split('.')[1]?.length ?? 0,
    maximumFractionDigits: 12,
  });
}

/** A table cell: integers as they are, others by `significant`. */
export function cellText(cell: string | number | null): string {
  if (typeof cell !== 'number') return cell ?? '';
  return Number.isInteger(cell) ? cell.toLocaleString('en-US') : significant(cell);
}

/** `60.6 (52.8–66.9)`; the median alone if all runs agree. */
export function spreadText({ median, min, max }: Pick<Metric, 'median' | 'min' | 'max'>): string {
  const middle = significant(median);
  return min === max ? middle : `${middle} (${significant(min)}–${significant(max)})`;
}

/** The command that reproduces a result. Sources that only the scorecard measures have no command of their own. */
export function commandText({ command, options }: Pick<BenchResult, 'command' | 'options'>): string {
  if (command === 'scorecard' || !('quick' in options)) return `cflow-bench ${command}`;
  return `cflow-bench scorecard --only ${command}${options.quick ? ' --quick' : ''}`;
}

/** Terminal output of a command: metrics, then tables. */
export function measuredText({ metrics, tables = [] }: Measured): string {
  const rows = metrics.map((metric) => [metric.name, spreadText(metric), metric.unit]);
  const figures = rows.length ? [leftFirst(rows).join('\n')] : [];
  return [...figures, ...tables.map(tableText)].join('\n\n');
}

function tableText({ title, columns, rows }: Table): string {
  const cells = rows.map((row) => row.map((cell) => (cell === null ? '-' : String(cell))));
  return [title, ...leftFirst([columns, ...cells])].join('\n');
}

/** Headings and rows, the first column left-aligned, the others right-aligned. */
export function leftFirst(rows: readonly (readonly string[])[]): string[] {
  const [[first = '', ...rest], ...body] = rows as [readonly string[], ...(readonly string[])[]];
  return table([first, ...rest.map((heading) => `>${heading}`)], body);
}

export function machineRows(machine: Machine): [string, string][] {
  const { cores, readBandwidth: read, disk } = machine;
  return [
    ['CPU', `${machine.cpu}, ${machine.isa ?? 'no native addon'}`],
    ['cores', `${cores.allowed} of ${cores.online} (${cores.why}), load ${cores.load} before`],
    ['memory limit', memoryText(machine.memoryLimit)],
    ['plain reads', read ? `${spreadText(read)} GB/s, ${plural(read.threads, 'thread')}` : 'not measured'],
    [
      'disk',
      disk
        ? `writes ${significant(disk.write)} GB/s, reads ${disk.read === null ? 'not measured' : `${significant(disk.read)} GB/s`}`
        : 'not measured',
    ],
    ['system', `${machine.os}, Node ${machine.node}`],
    ['commit', machine.commit ?? 'unknown'],
  ];
}
