/** Opens a checkpoint, whether a directory or a repository on the Hub. */
import { CflowError } from '@cflow/format';
import { type CheckpointSource, openCheckpoint } from '../sources/checkpoint.js';
import { isHubName } from './name.js';
import type { OpenSourceOptions } from './options.js';

/**
 * @throws CflowError as openCheckpoint; of a repository also USAGE (names), NOT_READABLE (status and remedy),
 *   VERIFY_FAILED (hashes, changes), WRITE_FAILED (cache), INTERRUPTED
 */
export async function openSource(options: OpenSourceOptions): Promise<CheckpointSource> {
  const { source, model, dryRun = false, maxHeaderBytes } = options;
  if (isHubName(source)) {
    // The library takes longer to load than all the rest of the command.
    const { openRepository } = await import('./repository.js');
    return openRepository(options);
  }
  if (!options.cache) {
    throw new CflowError('USAGE', '--no-cache applies to repositories of the Hub', {
      file: source,
      field: 'cache',
      remedy: 'leave it out, or name a repository as hf:org/name',
    });
  }
  return openCheckpoint(source, { model, dryRun, maxHeaderBytes });
}
