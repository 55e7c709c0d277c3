import type { Container, Dtype } from '@cflow/format';

/** What a conversion is asked to do; everything that changes the bytes goes into the metadata. */
export interface ConvertOptions {
  readonly source: string;
  readonly output: string;
  /** `auto`, or a preset that the checkpoint must match. */
  readonly model: string;
  readonly dtype: Dtype;
  readonly container: Container;
  readonly scaleSearch: boolean;
  readonly zeroNonfinite: boolean;
  readonly overwrite: boolean;
  readonly verify: boolean;
  readonly threads: number;
  readonly signal?: AbortSignal;
  /** Bytes of the output written so far, of how many. */
  readonly onProgress?: (done: number, total: number) => void;
}

export interface ConvertResult {
  readonly output: string;
  readonly model: string;
  readonly container: Container;
  readonly dtype: Dtype;
  readonly parameters: number;
  readonly fileBytes: number;
  readonly seconds: number;
  readonly threads: number;
  readonly verified: boolean;
  /** Entries of the tokenizer beside rows of the embedding, where they differ. */
  readonly notes: readonly string[];
}
