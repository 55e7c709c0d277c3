/** All faults of a file. */
import { type ByteSource, type Crc32, type ModelFile, verifyModel } from '@cflow/format';
import type { VerifyResult } from './schema.js';

/** Reads every byte of the file once; the faults come in file order. */
export async function verifyFile(
  source: ByteSource,
  file: ModelFile,
  options: { readonly crc32?: Crc32 } = {},
): Promise<VerifyResult> {
  const faults: VerifyResult['faults'] = [];
  for await (const fault of verifyModel(source, file, options)) faults.push({ ...fault });
  return { ok: faults.length === 0, checkedBytes: source.size, faults };
}
