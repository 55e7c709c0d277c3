/** The schema of results: every experiment writes it; `compare`, `report`, `scorecard` and the docs read it. */
import { AtomicFile } from '@cflow/convert/internal/targets/atomic-file.js';
import { CflowError, printable } from '@cflow/format';
import { checkTarget, readTextFile } from '@cflow/format/node';
import { z } from 'zod';
import { spread } from './statistics.js';

export const RESULT_SCHEMA = 'cflow-bench/1';

/** One figure with the values of all runs. A computed figure has one run. */
export const metricSchema = z
  .strictObject({
    /** `engine: figure`, e.g. `cflow: decode`. Unique in its file; `compare` matches by it. */
    name: z.string().min(1),
    unit: z.string(),
    better: z.enum(['higher', 'lower']),
    runs: z.array(z.number()).min(1),
    median: z.number(),
    min: z.number(),
    max: z.number(),
  })
  .refine(({ runs, median, min, max }) => {
    const actual = spread(runs);
    return actual.median === median && actual.min === min && actual.max === max;
  }, 'median, min and max do not match the runs');
export type Metric = z.infer<typeof metricSchema>;

export const tableSchema = z
  .strictObject({
    title: z.string(),
    columns: z.array(z.string()).min(1),
    rows: z.array(z.array(z.union([z.string(), z.number(), z.null()]))),
  })
  .refine(
    ({ columns, rows }) => rows.every((row) => row.length === columns.length),
    'a row has the wrong number of cells',
  );
export type Table = z.infer<typeof tableSchema>;

const rate = z.number().positive();
const spreadSchema = z.strictObject({ median: rate, min: rate, max: rate });

/** Where the figures were measured: machine, its limits measured in the same run, and commit. */
export const machineSchema = z.strictObject({
  cpu: z.string(),
  /** Instruction set of the kernels; null without the addon. */
  isa: z.string().nullable(),
  cores: z.strictObject({
    online: z.int().min(1),
    allowed: z.int().min(1),
    /** What limits `allowed`. */
    why: z.string(),
    /** Load average of the last minute, before the measurement. */
    load: z.number().min(0),
  }),
  /** Memory limit in bytes: of the machine, or of the cgroup. */
  memoryLimit: z.int().positive(),
  /** Bandwidth of plain memory reads with that many threads, GB/s; null without the addon. */
  readBandwidth: spreadSchema.extend({ threads: z.int().min(1) }).nullable(),
  /** Bandwidth of the disk of temporary files with direct I/O, GB/s; null where not supported. */
  disk: z.strictObject({ write: rate, read: rate.nullable() }).nullable(),
  os: z.string(),
  node: z.string(),
  /** Commit of the repository, with `-dirty` if it had changes; null outside a repository. */
  commit: z.string().nullable(),
});
export type Machine = z.infer<typeof machineSchema>;

export const resultSchema = z.strictObject({
  schema: z.literal(RESULT_SCHEMA),
  /** Name of the command: `decode`, `peers`. */
  command: z.string().min(1),
  machine: machineSchema,
  /** ISO 8601, end of the measurement. */
  date: z.iso.datetime(),
  options: z.record(z.string(), z.unknown()),
  metrics: z
    .array(metricSchema)
    .refine(
      (all) => new Set(all.map(({ name }) => name)).size === all.length,
      'two metrics have the same name',
    ),
  tables: z.array(tableSchema).optional(),
});
export type BenchResult = z.infer<typeof resultSchema>;

/** What an experiment measured, without machine and date. */
export type Measured = Pick<BenchResult, 'metrics' | 'tables'>;

/** @param runs at least one */
export function metric(
  name: string,
  unit: string,
  better: Metric['better'],
  runs: readonly number[],
): Metric {
  return { name, unit, better, runs: [...runs], ...spread(runs) };
}

/**
 * Escapes control characters: results of others go to terminals, HTML pages and charts.
 * @throws CflowError NOT_READABLE, LIMIT_EXCEEDED, FORMAT_INVALID with the first invalid field
 */
export async function readResult(file: string): Promise<BenchResult> {
  const parsed = resultSchema.safeParse(parseJson(await readTextFile(file), file));
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new CflowError('FORMAT_INVALID', issue?.message ?? 'is not a result file', {
    file,
    field: issue?.path.join('.'),
    remedy: `use a result file of schema ${RESULT_SCHEMA}, written by --save`,
  });
}

function parseJson(text: string, file: string): unknown {
  try {
    return clean(JSON.parse(text));
  } catch (cause) {
    const problem = cause instanceof RangeError ? 'is nested too deeply' : 'is not JSON';
    throw new CflowError('FORMAT_INVALID', problem, { file, cause });
  }
}

/** Other characters that XML excludes. */
const NO_CHARACTERS =
  /[\ufffe\uffff]|(?<![\ud800-\udbff])[\udc00-\udfff]|[\ud800-\udbff](?![\udc00-\udfff])/g;

function clean(value: unknown): unknown {
  if (typeof value === 'string') return printable(value.replace(NO_CHARACTERS, '\ufffd'));
  if (Array.isArray(value)) return value.map(clean);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [clean(key), clean(one)]));
}

/**
 * Writes the result atomically, replacing an earlier one.
 * @param inputs files that must not be overwritten
 * @throws CflowError WRITE_FAILED, OUTPUT_EXISTS (a directory, an input)
 */
export async function writeResult(
  file: string,
  result: BenchResult,
  inputs: readonly string[] = [],
): Promise<void> {
  const text = `${JSON.stringify(resultSchema.parse(result), undefined, 1)}\n`;
  await writeWhole(file, text, inputs);
}

/** Like writeResult, for any text or bytes. */
export async function writeWhole(
  target: string,
  content: string | Uint8Array,
  inputs: readonly string[] = [],
): Promise<void> {
  const bytes = Buffer.from(content);
  await checkTarget(target, inputs, true);
  const file = await AtomicFile.create(target, bytes.length);
  try {
    await file.write(0, bytes);
    await file.commit(true);
  } catch (error) {
    await file.discard();
    throw error;
  }
}
