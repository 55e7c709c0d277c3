/** From a source of bytes to a report, wherever the bytes are; no file system here. */
import { type ByteSource, type OpenOptions, openModel } from '@cflow/format';
import type { Section } from './render.js';
import { describe, planText } from './report.js';
import type { InspectReport } from './schema.js';
import { tensorStats } from './stats.js';
import { readTiles } from './tiles.js';
import { verifyFile } from './verify.js';

/** What is wanted of a report. */
export interface InspectRequest {
  /** `plan`, `verify` and `stats` are computed only if named here; the rest of a report always is. */
  readonly sections: readonly Section[];
  /** Tile headers to read of each stream; absent = none. */
  readonly tiles?: number;
}

/** Reads what was asked for, and no more: without tiles, verify and stats the head and tables alone. */
export async function inspect(
  source: ByteSource,
  request: InspectRequest,
  options: OpenOptions = {},
): Promise<InspectReport> {
  const file = await openModel(source, options);
  const wants = (section: Section) => request.sections.includes(section);
  const report = describe(file, source.name);
  if (wants('plan')) report.plan = planText(file);
  if (request.tiles) report.tiles = await readTiles(source, file, request.tiles);
  // Before the statistics, which stop at the first damaged tile.
  if (wants('verify')) report.verify = await verifyFile(source, file, options);
  if (wants('stats') && report.verify?.ok !== false) {
    report.stats = [];
    for await (const row of tensorStats(source, file)) report.stats.push(row);
  }
  return report;
}
