/** The one form of a result: what every command measures, what `compare`, `report`, `scorecard` and the docs read. */
import { AtomicFile } from '@cflow/convert';
import { CflowError, printable } from '@cflow/format';
import { checkTarget, readTextFile } from '@cflow/format/node';
import { z } from 'zod';
import { spread } from './statistics.js';

export const RESULT_SCHEMA = 'cflow-bench/1';

/** One figure with every run that gave it. A figure that is computed, not timed, has one run. */
export const metricSchema = z
  .strictObject({
    /** `subject: figure`, e.g. `cflow: decode`. Unique in its file; `compare` matches by it. */
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
  }, 'median, min and max are not those of the runs');
export type Metric = z.infer<typeof metricSchema>;

export const tableSchema = z
  .strictObject({
    title: z.string(),
    columns: z.array(z.string()).min(1),
    rows: z.array(z.array(z.union([z.string(), z.number(), z.null()]))),
  })
  .refine(
    ({ columns, rows }) => rows.every((row) => row.length === columns.length),
    'a row of another width',
  );
export type Table = z.infer<typeof tableSchema>;

const rate = z.number().positive();
const spreadSchema = z.strictObject({ median: rate, min: rate, max: rate });

/** What figures belong to: the machine, its limits as measured in the same run, and the code. */
export const machineSchema = z.strictObject({
  cpu: z.string(),
  /** What the kernels use; null without the addon. */
  isa: z.string().nullable(),
  cores: z.strictObject({
    online: z.int().min(1),
    allowed: z.int().min(1),
    /** Where `allowed` comes from. */
    why: z.string(),
    /** Load average of the last minute, before anything ran: what else the machine did. */
    load: z.number().min(0),
  }),
  /** Bytes that this process may use: of the machine, or of its cgroup. */
  memoryLimit: z.int().positive(),
  /** Plain reads by so many threads, 10^9 bytes a second; null without the addon. */
  readBandwidth: spreadSchema.extend({ threads: z.int().min(1) }).nullable(),
  /** Of the directory for temporary files, 10^9 bytes a second, past the page cache; null where it cannot be done. */
  disk: z.strictObject({ write: rate, read: rate.nullable() }).nullable(),
  os: z.string(),
  node: z.string(),
  /** Of the repository, with `-dirty` where it had changes; null outside it. */
  commit: z.string().nullable(),
});
export type Machine = z.infer<typeof machineSchema>;

export const resultSchema = z.strictObject({
  schema: z.literal(RESULT_SCHEMA),
  /** As it was called, without the program: `decode`, `peers`. */
  command: z.string().min(1),
  machine: machineSchema,
  /** ISO 8601, when the measuring ended. */
  date: z.iso.datetime(),
  options: z.record(z.string(), z.unknown()),
  metrics: z
    .array(metricSchema)
    .refine((all) => new Set(all.map(({ name }) => name)).size === all.length, 'two metrics of one name'),
  tables: z.array(tableSchema).optional(),
});
export type BenchResult = z.infer<typeof resultSchema>;

/** What a command measured, before it is said where and when. */
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
 * Control characters in its texts come escaped: results of others go to terminals, pages and pictures.
 * @throws CflowError NOT_READABLE, LIMIT_EXCEEDED, FORMAT_INVALID with the first field that is wrong
 */
export async function readResult(file: string): Promise<BenchResult> {
  const parsed = resultSchema.safeParse(parseJson(await readTextFile(file), file));
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new CflowError('FORMAT_INVALID', issue?.message ?? 'is no result', {
    file,
    field: issue?.path.join('.'),
    remedy: `a result of ${RESULT_SCHEMA}, as --save writes it`,
  });
}

function parseJson(text: string, file: string): unknown {
  try {
    return clean(JSON.parse(text));
  } catch (cause) {
    const problem = cause instanceof RangeError ? 'is nested too deeply' : 'is no JSON';
    throw new CflowError('FORMAT_INVALID', problem, { file, cause });
  }
}

/** What XML cannot hold, beside control characters. */
const NO_CHARACTERS =
  /[\ufffe\uffff]|(?<![\ud800-\udbff])[\udc00-\udfff]|[\ud800-\udbff](?![\udc00-\udfff])/g;

function clean(value: unknown): unknown {
  if (typeof value === 'string') return printable(value.replace(NO_CHARACTERS, '\ufffd'));
  if (Array.isArray(value)) return value.map(clean);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [clean(key), clean(one)]));
}

/**
 * Writes the result whole or not at all, in place of an earlier one.
 * @param inputs what must not be written over
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

/** As writeResult, of any text or bytes. */
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
