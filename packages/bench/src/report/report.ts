/** `cflow-bench report`. */
import { basename, extname, join } from 'node:path';
import { CflowError } from '@cflow/format';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { checkOutput, inputsOf, makeFolder } from '../runner/files.js';
import { type Builder, print } from '../runner/options.js';
import { breathe } from '../runner/resources.js';
import { readResult, writeWhole } from '../runner/result.js';
import type { NamedResult } from './page.js';

function options(y: Builder) {
  return y
    .positional('files', { type: 'string', array: true, demandOption: true, describe: 'result files' })
    .option('output', { type: 'string', describe: 'HTML page without script or request' })
    .option('svg', { type: 'string', describe: 'directory for an SVG of each chart' })
    .option('png', { type: 'string', describe: 'directory for a PNG of each chart' });
}

type ReportArgs = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

export const report: CommandModule<object, ReportArgs> = {
  command: 'report <files..>',
  describe: 'write results as an HTML page with charts',
  builder: options,
  handler: run,
};

async function run(args: ArgumentsCamelCase<ReportArgs>): Promise<void> {
  const { files, output, svg, png } = args;
  if ([output, svg, png].every((target) => target === undefined)) {
    throw new CflowError('USAGE', 'nothing to write', { remedy: 'give --output, --svg or --png' });
  }
  await checkOutput(output, args);
  const inputs = await inputsOf(args);
  const results = await Promise.all(files.map(named));
  requireFew(results);
  // The chart library is large; other commands start without it.
  const { chartsOf, reportHtml } = await import('./page.js');
  const { chartSvg } = await import('./charts.js');
  const written: string[] = [];
  const write = async (file: string, content: string | Uint8Array) => {
    await breathe();
    await writeWhole(file, content, inputs);
    written.push(file);
  };
  if (output !== undefined) await write(output, reportHtml(results));
  const forms = {
    svg: { folder: svg, draw: async (drawing: string) => drawing },
    png: { folder: png, draw: svgToPng },
  };
  for (const [ending, { folder, draw }] of Object.entries(forms)) {
    if (folder === undefined) continue;
    await makeFolder(folder);
    for (const chart of chartsOf(results))
      await write(join(folder, `${chart.key}.${ending}`), await draw(chartSvg(chart)));
  }
  await print(args, { written }, () => written.join('\n'));
}

/** Limit of charts; a hundred PNGs take ten seconds. */
const MOST_METRICS = 5000;

function requireFew(results: readonly NamedResult[]): void {
  const count = results.reduce((sum, { result }) => sum + result.metrics.length, 0);
  if (count <= MOST_METRICS) return;
  throw new CflowError('LIMIT_EXCEEDED', `${count} metrics, limit ${MOST_METRICS} per report`, {
    file: results.map(({ name }) => name).join(', '),
    value: count,
    limit: MOST_METRICS,
    remedy: 'report fewer files at a time',
  });
}

async function named(file: string): Promise<NamedResult> {
  return { name: basename(file, extname(file)), result: await readResult(file) };
}

/** Pixels per SVG unit, for high-density screens. */
const ZOOM = 2;

/**
 * Renders an SVG as PNG. Needs a system font.
 * @throws CflowError UNSUPPORTED if the library has no binary for the platform
 */
export async function svgToPng(svg: string): Promise<Uint8Array> {
  // A native module; loaded only for PNG.
  const { Resvg } = await import('@resvg/resvg-js').catch((cause: unknown) => {
    throw new CflowError('UNSUPPORTED', 'PNG output is not supported on this platform', {
      field: '--png',
      remedy: 'use --svg',
      cause,
    });
  });
  return new Resvg(svg, { fitTo: { mode: 'zoom', value: ZOOM } }).render().asPng();
}
