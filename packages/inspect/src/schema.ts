/** The report of a file as one JSON document. `cflow-inspect --json` prints it; programs may validate with this schema. */
import { DTYPE_NAMES, type Dtype, FORMAT_VERSIONS, modelConfigSchema } from '@cflow/format';
import { z } from 'zod';

const bytes = z.int().min(0);
const share = z.number().min(0).max(1);

/** What the bytes of a file are for, in the order in which the summary lists them. */
export const SIZE_KINDS = [
  'attention',
  'dense',
  'router',
  'experts',
  'finalNorm',
  'embedding',
  'lmHead',
  'tables',
  'metadata',
  'padding',
] as const;
/** Schema of `SizeKind`. */
export const sizeKindSchema = z.enum(SIZE_KINDS);
/** What bytes of a file are counted as. */
export type SizeKind = z.infer<typeof sizeKindSchema>;

const fileSchema = z.strictObject({
  name: z.string(),
  bytes,
  container: z.enum(['cflow', 'vflow']),
  /** Of the format. */
  version: z.literal(FORMAT_VERSIONS),
  dtype: z.enum(DTYPE_NAMES as [Dtype, ...Dtype[]]),
  regions: z.int(),
  /** End of what is needed to find a weight: header, metadata and tables in front of the streams. */
  headBytes: bytes,
});

const modelSchema = z.strictObject({
  parameters: z.int(),
  /** Distinct layer geometries, each with the layers that have it. */
  geometries: z.array(z.strictObject({ layers: z.array(z.int()), text: z.string() })),
  combine: z.string(),
  denseDelay: z.string(),
  expertDelay: z.string(),
  config: modelConfigSchema,
});

const originSchema = z.strictObject({
  source: z.strictObject({
    name: z.string(),
    revision: z.string().optional(),
    files: z.array(z.strictObject({ name: z.string(), bytes, sha256: z.string() })),
  }),
  converter: z.strictObject({
    version: z.string(),
    options: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])),
  }),
  /** Absent: the file has no tokenizer. Empty: it was not read, of a remote file of version 6. */
  tokenizer: z
    .strictObject({ vocabSize: z.int().optional(), chatTemplate: z.boolean().optional() })
    .optional(),
});

const sizeSchema = z.strictObject({ kind: sizeKindSchema, regions: z.int(), bytes, share });

/** Regions that follow one another and are of one kind; `layers` is first and last, absent for what has no layer. */
const runSchema = z.strictObject({
  kind: sizeKindSchema,
  name: z.string(),
  offset: bytes,
  bytes,
  regions: z.int(),
  layers: z.tuple([z.int(), z.int()]).optional(),
});

const placeSchema = z.strictObject({ offset: bytes, bytes });
const layerSchema = z.strictObject({
  layer: z.int(),
  attention: placeSchema,
  dense: placeSchema.optional(),
  router: placeSchema.optional(),
  expertTable: placeSchema.optional(),
  /** From the first byte of the first expert; `bytes` is the sum over the experts. */
  experts: placeSchema.extend({ count: z.int(), topK: z.int() }).optional(),
});

const expertSchema = z.strictObject({
  layer: z.int(),
  expert: z.int(),
  offset: bytes,
  bytes,
});

/** `CriticalPath` of the format package: bytes a token; `expert` counts the chosen; critical figures are amortized. */
const streamsSchema = z.strictObject({ attention: z.number(), dense: z.number(), expert: z.number() });
const pathSchema = streamsSchema.extend({ naive: z.number(), critical: z.number() });
const totalsSchema = z.strictObject({
  naive: z.number(),
  critical: z.number(),
  serial: z.number(),
  reduction: z.number(),
});
const criticalPathSchema = z.strictObject({
  dtype: z.enum(DTYPE_NAMES as [Dtype, ...Dtype[]]),
  /** One entry per pass over a layer: more than the stored layers where blocks are iterated. */
  layers: z.array(z.strictObject({ layer: z.int(), nominal: pathSchema, disk: pathSchema })).readonly(),
  nominal: totalsSchema,
  disk: totalsSchema,
  unique: streamsSchema,
  bytesPerToken: z.number(),
});

/** `MemoryEstimate` of the format package, in bytes, for the model's own context length. */
const memorySchema = z.strictObject({
  weights: bytes,
  kvCache: z.strictObject({ f32: bytes, f16: bytes }),
  workingSet: bytes,
});

const tileSchema = z.strictObject({
  stream: z.string(),
  offset: bytes,
  matrix: z.string(),
  layer: z.int(),
  /** Absent: not of an expert. */
  expert: z.int().optional(),
  row: z.int(),
  col: z.int(),
  rows: z.int(),
  cols: z.int(),
  group: z.int(),
  /** Fields that are not what the place of the tile demands; empty = right. */
  wrong: z.array(z.string()),
});

const faultSchema = z.strictObject({ region: z.string(), offset: bytes, problem: z.string() });
const verifySchema = z.strictObject({ ok: z.boolean(), checkedBytes: bytes, faults: z.array(faultSchema) });

/** Statistics over the finite values; null where there are none. */
const number = z.number().nullable();
const statsSchema = z.strictObject({
  tensor: z.string(),
  stream: z.string(),
  shape: z.array(z.int()),
  /** `f32` for what is stored plain, otherwise the tile dtype. */
  dtype: z.string(),
  values: z.int(),
  nonFinite: z.int(),
  zeros: share,
  min: number,
  max: number,
  mean: number,
  std: number,
  /** Magnitudes of the group scales; absent where the dtype has none. */
  scales: z.strictObject({ count: z.int(), zeros: share, min: number, max: number, mean: number }).optional(),
});

/** Schema of what `cflow-inspect --json` prints. */
export const inspectReportSchema = z.strictObject({
  file: fileSchema,
  model: modelSchema,
  origin: originSchema,
  sizes: z.array(sizeSchema),
  layout: z.array(runSchema),
  criticalPath: criticalPathSchema,
  memory: memorySchema,
  layers: z.array(layerSchema),
  experts: z.array(expertSchema),
  /** The execution plan as text, transfers overlapped. */
  plan: z.string().optional(),
  /** With --tiles. */
  tiles: z.array(tileSchema).optional(),
  /** With --verify. */
  verify: verifySchema.optional(),
  /** With --stats. */
  stats: z.array(statsSchema).optional(),
});

/** What is known of a file. */
export type InspectReport = z.infer<typeof inspectReportSchema>;
/** Regions and bytes of one kind. */
export type SizeRow = z.infer<typeof sizeSchema>;
/** Regions that follow one another and are of one kind. */
export type Run = z.infer<typeof runSchema>;
/** One layer. */
export type LayerRow = z.infer<typeof layerSchema>;
/** One expert. */
export type ExpertRow = z.infer<typeof expertSchema>;
/** The header of one tile. */
export type TileRow = z.infer<typeof tileSchema>;
/** Values of one tensor, and its scales. */
export type StatsRow = z.infer<typeof statsSchema>;
/** Every fault that was found, with its offset. */
export type VerifyResult = z.infer<typeof verifySchema>;
