/** The one form of a result: what every command measures, what `compare`, `report`, `scorecard` and the docs read. */
import { readFile } from 'node:fs/promises';
import { AtomicFile, checkTarget } from '@cflow/convert';
import { CflowError } from '@cflow/format';
import { errno } from '@cflow/format/node';
import { z } from 'zod';
import { machineSchema } from './machine-schema.js';
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

/** @throws CflowError NOT_READABLE, FORMAT_INVALID with the first field that is wrong */
export async function readResult(file: string): Promise<BenchResult> {
  const text = await readFile(file, 'utf8').catch((cause: unknown) => {
    throw new CflowError('NOT_READABLE', `cannot open: ${errno(cause)}`, { file, cause });
  });
  const parsed = resultSchema.safeParse(parseJson(text, file));
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
    return JSON.parse(text);
  } catch (cause) {
    throw new CflowError('FORMAT_INVALID', 'is no JSON', { file, cause });
  }
}

/**
 * Writes the result whole or not at all, in place of an earlier one.
 * @throws CflowError WRITE_FAILED, OUTPUT_EXISTS (a directory)
 */
export async function writeResult(file: string, result: BenchResult): Promise<void> {
  const text = `${JSON.stringify(resultSchema.parse(result), undefined, 1)}\n`;
  await writeWhole(file, text);
}

/** As writeResult, of any text or bytes. */
export async function writeWhole(target: string, content: string | Uint8Array): Promise<void> {
  const bytes = Buffer.from(content);
  await checkTarget(target, [], true);
  const file = await AtomicFile.create(target, bytes.length);
  try {
    await file.write(0, bytes);
    await file.commit(true);
  } catch (error) {
    await file.discard();
    throw error;
  }
}
