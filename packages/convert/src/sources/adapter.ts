/** LoRA adapters: what training with PEFT saves instead of a model. */
import { CflowError } from '@cflow/format';
import { parseJsonObject } from '../json.js';
import type { CheckpointFiles } from './files.js';

export const ADAPTER_FILE = 'adapter_config.json';

/**
 * Refuses an adapter; called for a directory that lacks config.json or weights.
 * @param bytes of its ADAPTER_FILE; absent: there is none
 * @throws CflowError UNSUPPORTED if it is an adapter
 */
export function refuseAdapter(bytes: Uint8Array | undefined, files: CheckpointFiles): void {
  if (!bytes) return;
  const file = files.at(ADAPTER_FILE);
  const base = parseJsonObject(bytes, { file }).base_model_name_or_path;
  const model = typeof base === 'string' && base !== '' ? base : 'its base model';
  throw new CflowError('UNSUPPORTED', 'a LoRA adapter, not a model', {
    file,
    value: base,
    remedy: `merge it into ${model.slice(0, 200)} with PEFT (merge_and_unload, save_pretrained), then convert that directory`,
  });
}

/** A model beside an adapter is converted without it. */
export function adapterNotes(names: readonly string[]): string[] {
  return names.includes(ADAPTER_FILE) ? [`${ADAPTER_FILE}: the adapter beside the model is not applied`] : [];
}
