/** `cflow-bench report`. */
import { basename, extname, join } from 'node:path';
import { CflowError } from '@cflow/format';
import { type Builder, print } from '../harness/cli-common.js';
import { checkOutput, inputsOf, makeFolder } from '../harness/files.js';
import { breathe } from '../harness/resources.js';
import { readResult, writeWhole } from '../harness/result.js';
import { chartsOf, type NamedResult } from './grouping.js';
import { svgToPng } from './png.js';

export function reportOptions(y: Builder) {
  return y
    .positional('files', { type: 'string', array: true, demandOption: true, describe: 'result files' })
    .option('output', { type: 'string', describe: 'HTML page, complete in itself' })
    .option('svg', { type: 'string', describe: 'directory for a file of each chart' })
    .option('png', { type: 'string', describe: 'directory for a picture of each chart' });
}

export async function runReport(
  args: Awaited<ReturnType<ReturnType<typeof reportOptions>['parse']>>,
): Promise<void> {
  const { files, output, svg, png } = args;
  if ([output, svg, png].every((target) => target === undefined)) {
    throw new CflowError('USAGE', 'nothing to write', { remedy: 'give --output, --svg or --png' });
  }
  await checkOutput(output, args);
  const inputs = await inputsOf(args);
  const results = await Promise.all(files.map(named));
  requireFew(results);
  // The chart library is large; other commands start without it.
  const { reportHtml } = await import('./html.js');
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

/** A hundred charts, more than anybody reads; pictures of them take ten seconds. */
const MOST_METRICS = 5000;

function requireFew(results: readonly NamedResult[]): void {
  const count = results.reduce((sum, { result }) => sum + result.metrics.length, 0);
  if (count <= MOST_METRICS) return;
  throw new CflowError('LIMIT_EXCEEDED', `${count} metrics, a report has at most ${MOST_METRICS}`, {
    file: results.map(({ name }) => name).join(', '),
    value: count,
    limit: MOST_METRICS,
    remedy: 'report fewer files at a time',
  });
}

async function named(file: string): Promise<NamedResult> {
  return { name: basename(file, extname(file)), result: await readResult(file) };
}
