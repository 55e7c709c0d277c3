/** The rule that regions cover a file exactly once. */

import { invalid } from '../errors.js';
import { STREAM_ALIGNMENT } from '../tiles/dtype.js';
import { REGION, TABLE_ALIGNMENT } from './layout.js';
import type { Region } from './layout-types.js';

/** Sorts the regions, fills the gaps with padding, and rejects overlaps, gaps that no alignment explains, and a wrong end. */
export function cover(regions: readonly Region[], size: number, file: string): Region[] {
  const covered: Region[] = [];
  let end = 0;
  for (const region of [...regions].sort((a, b) => a.offset - b.offset)) {
    const at = { file, field: region.name, offset: region.offset };
    if (region.offset < end) invalid(`overlaps ${covered.at(-1)!.name}, which ends at ${end}`, at);
    const gap = region.offset - end;
    const alignment = region.kind === 'stream' ? STREAM_ALIGNMENT : TABLE_ALIGNMENT;
    if (region.offset % alignment) invalid(`starts at ${region.offset}, not a multiple of ${alignment}`, at);
    if (gap >= alignment) invalid(`leaves a gap of ${gap} bytes after ${covered.at(-1)?.name}`, at);
    if (gap) covered.push({ name: REGION.padding(end), kind: 'padding', offset: end, length: gap });
    covered.push(region);
    end = region.offset + region.length;
    if (end > size)
      invalid(`ends at ${end}, the file has ${size} bytes`, { ...at, remedy: 'the file is truncated' });
  }
  if (end !== size) {
    invalid(`${size - end} bytes after the last region`, {
      file,
      offset: end,
      remedy: 'the file was padded or appended to',
    });
  }
  return covered;
}
