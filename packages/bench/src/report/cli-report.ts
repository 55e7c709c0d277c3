/** `cflow-bench report`. */
import { mkdir } from 'node:fs/promises';
import { basename, extname, join } from 'node:path';
import { CflowError } from '@cflow/format';
import { errno } from '@cflow/format/node';
import { type Builder, print } from '../harness/cli-common.js';
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
  const results = await Promise.all(files.map(named));
  // The chart library is large; other commands start without it.
  const { reportHtml } = await import('./html.js');
  const { chartSvg } = await import('./charts.js');
  const written: string[] = [];
  const write = async (file: string, content: string | Uint8Array) => {
    await writeWhole(file, content);
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

async function makeFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true }).catch((cause: unknown) => {
    throw new CflowError('WRITE_FAILED', `cannot create: ${errno(cause)}`, { file: folder, cause });
  });
}

async function named(file: string): Promise<NamedResult> {
  return { name: basename(file, extname(file)), result: await readResult(file) };
}
