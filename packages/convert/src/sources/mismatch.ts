/** Holds what a checkpoint stores against what its configuration asks for. */
import { CflowError, checkStreamCount, type ModelConfig, modelTensors } from '@cflow/format';
import { checkpointName, type Family, isIgnorable } from '../families/index.js';
import type { SafetensorsEntry } from './safetensors.js';
import { DECODERS } from './safetensors-dtype.js';
import { listed } from './shards.js';

export interface TensorMismatch {
  readonly kind: 'missing' | 'shape' | 'surplus' | 'dtype';
  /** The checkpoint's name. */
  readonly name: string;
  readonly problem: string;
}

type Stored = ReadonlyMap<string, { readonly entry: Pick<SafetensorsEntry, 'dtype' | 'shape'> }>;

/** Canonical name → name in the checkpoint, of every tensor of a model. */
export function tensorNameMap(config: ModelConfig, family: Family, file?: string): Map<string, string> {
  checkStreamCount(config, file);
  return new Map(modelTensors(config).map(({ name }) => [name, checkpointName(family, name)]));
}

/** Everything that is missing, of another shape, of a dtype that cannot be read, or left over, in this order. */
export function listTensorMismatches(config: ModelConfig, family: Family, stored: Stored): TensorMismatch[] {
  const names = tensorNameMap(config, family);
  const found: TensorMismatch[] = [];
  for (const { name: canonical, shape } of modelTensors(config)) {
    const name = names.get(canonical)!;
    const entry = stored.get(name)?.entry;
    if (!entry) found.push({ kind: 'missing', name, problem: `missing ${name} [${shape}]` });
    else if (String(entry.shape) !== String(shape)) {
      found.push({ kind: 'shape', name, problem: `${name} is [${entry.shape}], not [${shape}]` });
    } else if (!DECODERS[entry.dtype]) {
      found.push({ kind: 'dtype', name, problem: `${name} has the unsupported dtype ${entry.dtype}` });
    }
  }
  const known = new Set(names.values());
  for (const [name, { entry }] of stored) {
    if (known.has(name) || isIgnorable(family, name) || isTiedHead(config, name)) continue;
    found.push({ kind: 'surplus', name, problem: `surplus ${name} [${entry.shape}]` });
  }
  const order = ['missing', 'shape', 'dtype', 'surplus'];
  return found.sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
}

/** Some exports store the tied head again; it is the embedding. */
function isTiedHead(config: ModelConfig, name: string): boolean {
  return config.tiedEmbeddings && name === 'lm_head.weight';
}

/**
 * Throws one error for all mismatches, at most twenty of them spelled out: UNSUPPORTED if dtypes are all that is wrong,
 * TENSOR_MISMATCH otherwise.
 */
export function throwMismatches(mismatches: readonly TensorMismatch[], file: string): void {
  if (mismatches.length === 0) return;
  const onlyDtypes = mismatches.every(({ kind }) => kind === 'dtype');
  throw new CflowError(
    onlyDtypes ? 'UNSUPPORTED' : 'TENSOR_MISMATCH',
    `${mismatches.length} tensors do not match the configuration: ${listed(mismatches.map((m) => m.problem))}`,
    {
      file,
      value: mismatches.length,
      remedy: onlyDtypes
        ? `weights must be ${Object.keys(DECODERS).join(', ')}`
        : 'do config.json and weights belong together?',
    },
  );
}
