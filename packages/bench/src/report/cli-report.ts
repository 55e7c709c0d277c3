/** `cflow-bench report`. */
import { mkdir } from 'node:fs/promises';
import { basename, extname, join } from 'node:path';
import { CflowError } from '@cflow/format';
import { errno } from '@cflow/format/node';
import { type Builder, print } from '../harness/cli-common.js';
import { readResult, writeTextFile } from '../harness/result.js';
import type { NamedResult } from './html.js';

export function reportOptions(y: Builder) {
  return y
    .positional('files', { type: 'string', array: true, demandOption: true, describe: 'result files' })
    .option('output', { type: 'string', describe: 'HTML page, complete in itself' })
    .option('svg', { type: 'string', describe: 'directory for a file of each chart' });
}

export async function runReport(
  args: Awaited<ReturnType<ReturnType<typeof reportOptions>['parse']>>,
): Promise<void> {
  const { files, output, svg } = args;
  if (output === undefined && svg === undefined) {
    throw new CflowError('USAGE', 'nothing to write', { remedy: 'give --output or --svg' });
  }
  const results = await Promise.all(files.map(named));
  // The chart library is large; other commands start without it.
  const { chartsOf, reportHtml } = await import('./html.js');
  const { chartSvg } = await import('./charts.js');
  const written: string[] = [];
  const write = async (file: string, text: string) => {
    await writeTextFile(file, text);
    written.push(file);
  };
  if (output !== undefined) await write(output, reportHtml(results));
  if (svg !== undefined) {
    await mkdir(svg, { recursive: true }).catch((cause: unknown) => {
      throw new CflowError('WRITE_FAILED', `cannot create: ${errno(cause)}`, { file: svg, cause });
    });
    for (const chart of chartsOf(results)) await write(join(svg, `${chart.key}.svg`), chartSvg(chart));
  }
  await print(args, { written }, () => written.join('\n'));
}

async function named(file: string): Promise<NamedResult> {
  return { name: basename(file, extname(file)), result: await readResult(file) };
}
