/** Source and output in each other's place. */
import { stat } from 'node:fs/promises';
import { extname } from 'node:path';
import { CflowError } from '@cflow/format';
import { isHubName } from './hub/name.js';
import { isWritable } from './options.js';

/**
 * @throws CflowError USAGE if the source is called as an output and does not exist, while the output is a repository on
 *   the Hub or exists
 */
export async function refuseSwapped(source: string, output: string): Promise<void> {
  const remedy = `the source comes first: cflow-convert ${output} ${source}`;
  if (isHubName(output)) {
    throw new CflowError('USAGE', 'a repository on the Hub, where the output is expected', {
      file: output,
      remedy: isHubName(source) ? 'name a .cflow or .vflow' : remedy,
    });
  }
  if (isHubName(source) || !isWritable(extname(source)) || (await exists(source))) return;
  if (!(await exists(output))) return;
  throw new CflowError('USAGE', `the source does not exist, but the output ${output} does`, {
    file: source,
    remedy,
  });
}

const exists = (path: string) =>
  stat(path).then(
    () => true,
    () => false,
  );
