/** Holds what a checkpoint stores against what its configuration asks for. */
import { CflowError, checkStreamCount, type ModelConfig } from '@cflow/format';
import {
  type Family,
  isIgnorable,
  placeTensors,
  type StoredNames,
  type TensorPlace,
} from '../families/index.js';
import type { SafetensorsEntry } from './safetensors.js';
import { DECODERS } from './safetensors-dtype.js';
import { listed } from './shards.js';

export interface TensorMismatch {
  readonly kind: 'missing' | 'shape' | 'surplus' | 'dtype';
  /** The checkpoint's name. */
  readonly name: string;
  readonly problem: string;
  /** The unsupported one. */
  readonly dtype?: string;
}

type Stored = ReadonlyMap<string, { readonly entry: Pick<SafetensorsEntry, 'dtype' | 'shape'> }>;

/** Name of the scales of a quantized tensor, beside it. */
export const scalesName = (name: string): string => `${name}_scale_inv`;

/** Canonical name → where in the checkpoint, of every tensor of a model; see `placeTensors`. */
export function tensorPlaces(
  config: ModelConfig,
  family: Family,
  file?: string,
  stored?: StoredNames,
): Map<string, TensorPlace> {
  checkStreamCount(config, file);
  return placeTensors(config, family, stored);
}

/** Canonical name → usual name in the checkpoint, of every tensor of a model. */
export function tensorNameMap(config: ModelConfig, family: Family, file?: string): Map<string, string> {
  return new Map([...tensorPlaces(config, family, file)].map(([canonical, { name }]) => [canonical, name]));
}

/** Everything that is missing, of another shape, of a dtype that cannot be read, or left over, in this order. */
export function listTensorMismatches(config: ModelConfig, family: Family, stored: Stored): TensorMismatch[] {
  const places = tensorPlaces(config, family, undefined, stored);
  // Several tensors of a model may lie in one: it is wrong once.
  const shapes = new Map([...places.values()].map(({ name, shape }) => [name, shape]));
  const found: TensorMismatch[] = [];
  for (const [name, shape] of shapes) {
    const entry = stored.get(name)?.entry;
    if (!entry) found.push({ kind: 'missing', name, problem: `missing ${name} [${shape}]` });
    else if (String(entry.shape) !== String(shape)) {
      found.push({ kind: 'shape', name, problem: `${name} is [${entry.shape}], not [${shape}]` });
    } else if (!DECODERS[entry.dtype]) {
      const problem = `${name} has the unsupported dtype ${entry.dtype}`;
      found.push({ kind: 'dtype', name, dtype: entry.dtype, problem });
    }
  }
  const known = new Set([...shapes.keys()].flatMap((name) => [name, scalesName(name)]));
  for (const [name, { entry }] of stored) {
    if (known.has(name) || isIgnorable(family, name) || isTiedHead(config, name) || isShared(config, name))
      continue;
    found.push({ kind: 'surplus', name, problem: `surplus ${name} [${entry.shape}]` });
  }
  const order = ['missing', 'shape', 'dtype', 'surplus'];
  return found.sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
}

/** Some exports store the tied head again; it is the embedding. */
function isTiedHead(config: ModelConfig, name: string): boolean {
  return config.tiedEmbeddings && /^(language_model\.)?lm_head\.weight$/.test(name);
}

/** Keys and values that a layer stores although it reads those of another. */
function isShared(config: ModelConfig, name: string): boolean {
  const layer = /layers\.(\d+)\.self_attn\.(k_proj|v_proj|k_norm)\./.exec(name)?.[1];
  return layer !== undefined && config.layers[Number(layer)]?.attention.kvFrom !== undefined;
}

/**
 * Throws one error for all mismatches, at most twenty of them spelled out: UNSUPPORTED if dtypes are all that is wrong,
 * TENSOR_MISMATCH otherwise.
 */
export function throwMismatches(mismatches: readonly TensorMismatch[], file: string): void {
  if (mismatches.length === 0) return;
  const onlyDtypes = mismatches.every(({ kind }) => kind === 'dtype');
  const counts = new Map<string, number>();
  for (const { dtype } of mismatches) if (dtype) counts.set(dtype, (counts.get(dtype) ?? 0) + 1);
  const dtypes = [...counts].map(([dtype, count]) => `${count} × ${dtype}`).join(', ');
  throw new CflowError(
    onlyDtypes ? 'UNSUPPORTED' : 'TENSOR_MISMATCH',
    `${mismatches.length} tensors do not match the configuration${dtypes && ` (${dtypes})`}: ${listed(
      mismatches.map((m) => m.problem),
    )}`,
    {
      file,
      value: mismatches.length,
      remedy: onlyDtypes
        ? `weights must be ${Object.keys(DECODERS).join(', ')}`
        : 'do config.json and weights belong together?',
    },
  );
}
