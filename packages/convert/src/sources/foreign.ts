import { CflowError, foreignFile } from '@cflow/format';

/** @throws CflowError FORMAT_INVALID if the first bytes of a file are those of another kind, such as a Git LFS pointer */
export function refuseForeign(bytes: Uint8Array, file: string, expected: string): void {
  const foreign = foreignFile(bytes, expected);
  if (foreign) throw new CflowError('FORMAT_INVALID', foreign.what, { file, remedy: foreign.remedy });
}
