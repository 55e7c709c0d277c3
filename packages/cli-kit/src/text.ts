/** Counts and tables on a terminal. */

/** Columns of a terminal that help and reports use. */
export const WIDTH = 100;

/** `12,345`. */
export function count(n: number): string {
  return n.toLocaleString('en-US', { maximumFractionDigits: 6 });
}

/** `1 thread`, `2 threads`, `3 geometries`. */
export function plural(n: number, noun: string, many = `${noun}s`): string {
  return `${count(n)} ${n === 1 ? noun : many}`;
}

/** Lines of padded columns; those whose heading starts with `>` are right-aligned. */
export function table(headings: readonly string[], rows: readonly (readonly string[])[]): string[] {
  const right = headings.map((heading) => heading.startsWith('>'));
  const all = [headings.map((heading) => heading.replace(/^>/, '')), ...rows];
  const widths = headings.map((_, column) =>
    all.reduce((most, row) => Math.max(most, length(row[column]!)), 0),
  );
  const line = (row: readonly string[]) =>
    row
      .map((cell, column) => {
        const fill = ' '.repeat(widths[column]! - length(cell));
        return right[column] ? fill + cell : cell + fill;
      })
      .join('  ')
      .trimEnd();
  return all.map(line);
}

/** Characters, not UTF-16 units. */
const length = (text: string) => [...text].length;
