/** What is in a .cflow or .vflow file: a report of it, the report's schema, and the report as text. */

export { type InspectRequest, inspect } from './inspect.js';
export { render, type Section } from './render.js';
export {
  type ExpertRow,
  type InspectReport,
  inspectReportSchema,
  type LayerRow,
  type Run,
  SIZE_KINDS,
  type SizeKind,
  type SizeRow,
  type StatsRow,
  type TileRow,
  type VerifyResult,
} from './schema.js';
