/** How a source is opened, whether a directory or a repository on the Hub. */
import type { CheckpointSource } from '../sources/checkpoint.js';
import type { ClientOptions } from './client.js';

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
