/** Opens a checkpoint, whether a directory or a repository on the Hub. */
import { CflowError } from '@cflow/format';
import { type CheckpointSource, openCheckpoint } from '../sources/checkpoint.js';
import type { ClientOptions } from './client.js';
import { isHubName } from './name.js';

/** What is about to be fetched, and below which directory it will lie. */
export interface Download {
  readonly directory: string;
  readonly bytes: number;
}

export interface OpenSourceOptions extends ClientOptions {
  /** A directory, or `hf:org/name[@revision]`. */
  readonly source: string;
  readonly model: string;
  /** false: nothing is written to the Hub's cache; weights come by ranges while they are converted. */
  readonly cache: boolean;
  readonly dryRun?: boolean;
  /** Bytes that the header of a safetensors file may have. */
  readonly maxHeaderBytes?: number | undefined;
  /** Before anything large is fetched: what of the output can be checked by now. */
  readonly beforeDownload?: ((checkpoint: CheckpointSource, download: Download) => Promise<void>) | undefined;
  /** Bytes of the weights that are in the cache so far, of how many. */
  readonly onDownload?: ((done: number, total: number) => void) | undefined;
}

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
