/** What the commands share. */
import { CflowError } from '@cflow/format';
import { writeOutput } from '@cflow/format/node';
import type yargs from 'yargs';

export type Builder = ReturnType<typeof yargs>;

/** @throws CflowError USAGE unless it is a whole number from `least` to `most` */
export function count(field: string, value: number, most: number, least = 1): number {
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  throw new CflowError('USAGE', `--${field} is ${value}, expected ${least} to ${most}`, { field, value });
}

export async function print<T>(
  args: Record<string, unknown>,
  result: T,
  describe: (result: T) => string,
): Promise<void> {
  await writeOutput(`${args.json ? JSON.stringify(result) : describe(result)}\n`);
}

export const mega = (bytes: number) => (bytes / 1e6).toFixed(1);

/** Rows of cells, right-aligned under one another. */
export function table(rows: readonly (readonly string[])[]): string[] {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
  return rows.map((row) => row.map((cell, column) => cell.padStart(widths[column]!)).join('  '));
}
