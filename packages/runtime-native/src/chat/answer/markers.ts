/** Markers in text that comes in pieces. */

/** Characters at the end of a text that may be the beginning of a marker. */
export function held(text: string, markers: readonly string[]): number {
  for (
    let count = Math.min(text.length, Math.max(0, ...markers.map(({ length }) => length)));
    count > 0;
    count--
  ) {
    const tail = text.slice(text.length - count);
    if (markers.some((marker) => marker.length > count && marker.startsWith(tail))) return count;
  }
  return 0;
}

/** The first marker of a text, and where it is; undefined if there is none. */
export function firstOf(
  text: string,
  markers: readonly string[],
): { readonly at: number; readonly marker: string } | undefined {
  const found = markers
    .map((marker) => ({ at: text.indexOf(marker), marker }))
    .filter(({ at }) => at >= 0)
    .sort((a, b) => a.at - b.at || b.marker.length - a.marker.length);
  return found[0];
}
