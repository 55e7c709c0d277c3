/** A report of decoding as metrics. */
import { type Measured, type Metric, metric } from '../harness/result.js';
import type { DecodeReport, DecodeRow } from './decode-bench.js';
import type { DecodeRun } from './decode-job.js';

interface Figure {
  readonly name: string;
  readonly unit: string;
  readonly better: Metric['better'];
  /** Of one run; undefined where the subject has no such figure. */
  readonly of: (run: DecodeRun, report: DecodeReport) => number | undefined;
}

const perSecond = (tokens: number, seconds: number | undefined) => seconds && tokens / seconds;

/** In the order in which tables show them. */
export const FIGURES = [
  {
    name: 'decode',
    unit: 'tok/s',
    better: 'higher',
    of: (run, { tokens }) => perSecond(tokens, run.decodeSeconds),
  },
  {
    name: 'decode in context',
    unit: 'tok/s',
    better: 'higher',
    of: (run, { tokens }) => perSecond(tokens, run.contextDecodeSeconds),
  },
  {
    name: 'prefill',
    unit: 'tok/s',
    better: 'higher',
    of: (run, { prefill }) => perSecond(prefill, run.prefillSeconds),
  },
  { name: 'open', unit: 's', better: 'lower', of: (run) => run.openSeconds },
  { name: 'first token', unit: 's', better: 'lower', of: (run) => run.firstTokenSeconds },
  { name: 'peak memory', unit: 'MB', better: 'lower', of: (run) => run.peakBytes / 1e6 },
  {
    name: 'weights a token',
    unit: 'MB',
    better: 'lower',
    of: ({ bytesPerToken }) => bytesPerToken && bytesPerToken / 1e6,
  },
  { name: 'barriers a token', unit: '', better: 'lower', of: (run) => run.native?.barriersPerToken },
] as const satisfies readonly Figure[];

/** `subject: figure` of every subject. @param prefix e.g. `olmoe ` where several models stand in one result */
export function decodeMetrics(report: DecodeReport, prefix = ''): Metric[] {
  return report.rows.flatMap((row) => rowMetrics(row, report, prefix));
}

function rowMetrics({ subject, runs }: DecodeRow, report: DecodeReport, prefix: string): Metric[] {
  return FIGURES.flatMap(({ name, unit, better, of }) => {
    const values = runs.map((run) => of(run, report)).filter((value) => value !== undefined);
    return values.length ? [metric(`${prefix}${subject}: ${name}`, unit, better, values)] : [];
  });
}

export function decodeMeasured(report: DecodeReport): Measured {
  const rows = report.rows.map(({ subject, backend, threads }) => [subject, backend, threads]);
  return {
    metrics: decodeMetrics(report),
    tables: [{ title: `${report.model}: subjects`, columns: ['subject', 'backend', 'threads'], rows }],
  };
}
