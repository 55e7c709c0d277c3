/**
 * Accounts for everything that a checkpoint stores: each tensor is used by the model, is the scales of one that is, is
 * ignored by a rule that is said, or is refused. From headers alone, so before any weight moves.
 */
import { CflowError, checkStreamCount, type ModelConfig } from '@cflow/format';
import {
  type Family,
  type IgnoreRule,
  ignoreRule,
  placeTensors,
  type StoredNames,
  type TensorPlace,
} from '../families/index.js';
import type { Quantization } from './quantization.js';
import type { SafetensorsEntry } from './safetensors.js';
import { DECODERS } from './safetensors-dtype.js';
import { isQuantized, type ScaleShape, scaleProblem, scaleShape, scalesName, scalesOwner } from './scales.js';
import { listOf } from './shards.js';

/** One way in which a tensor and the configuration disagree. */
export interface TensorMismatch {
  readonly kind: 'missing' | 'shape' | 'scale' | 'dtype' | 'surplus';
  /** The checkpoint's name. */
  readonly name: string;
  readonly problem: string;
  /** The unsupported one. */
  readonly dtype?: string;
}

type Entry = Pick<SafetensorsEntry, 'dtype' | 'shape'>;
/** Stored tensors by the checkpoint's names. */
export type StoredEntries = ReadonlyMap<string, { readonly entry: Entry }>;

/** Where everything went. */
export interface TensorLedger {
  /** Canonical name → where in the checkpoint. */
  readonly places: ReadonlyMap<string, TensorPlace>;
  /** Stored names of quantized tensors → how their scales lie. */
  readonly scales: ReadonlyMap<string, ScaleShape>;
  readonly mismatches: readonly TensorMismatch[];
  /** What was ignored, a line a rule. */
  readonly notes: readonly string[];
}

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

/** What tensors are accounted against. */
export interface LedgerInput {
  readonly config: ModelConfig;
  readonly family: Family;
  readonly stored: StoredEntries;
  readonly quantization?: Quantization | undefined;
}

/** Pure: headers in, a role for each tensor out. Mismatches are missing tensors first, surplus ones last. */
export function tensorLedger({ config, family, stored, quantization }: LedgerInput): TensorLedger {
  const places = tensorPlaces(config, family, undefined, stored);
  // Several tensors of a model may lie in one: it is wrong once.
  const used = new Map([...places.values()].map(({ name, shape }) => [name, shape]));
  const mismatches: TensorMismatch[] = [];
  for (const [name, shape] of used)
    mismatches.push(...usedProblems(name, shape, stored.get(name)?.entry, config));
  const { scales, problems, notes } = accountScales(used, stored, quantization);
  mismatches.push(...problems);
  const ignored = new Map<IgnoreRule, string[]>();
  for (const [name, { entry }] of stored) {
    if (used.has(name) || scalesOwner(name) !== undefined) continue;
    const rule = ignoreRule(family, config, name);
    if (rule) ignored.set(rule, [...(ignored.get(rule) ?? []), name]);
    else mismatches.push({ kind: 'surplus', name, problem: `surplus ${name} [${entry.shape}]` });
  }
  const order = ['missing', 'shape', 'scale', 'dtype', 'surplus'];
  mismatches.sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
  return { places, scales, mismatches, notes: [...notes, ...[...ignored].map(ignoredNote)] };
}

function ignoredNote([{ reason }, names]: [IgnoreRule, readonly string[]]): string {
  const count = names.length === 1 ? '1 tensor' : `${names.length} tensors`;
  return `ignored ${count}: ${reason} (${names[0]}${names.length > 1 ? ', …' : ''})`;
}

function* usedProblems(
  name: string,
  shape: readonly number[],
  entry: Entry | undefined,
  { tiedEmbeddings }: ModelConfig,
): Generator<TensorMismatch> {
  if (!entry) {
    const tie = !tiedEmbeddings && name.endsWith('lm_head.weight');
    const hint = tie
      ? ': if the embedding is the LM head too, set "tie_word_embeddings": true in config.json'
      : '';
    yield { kind: 'missing', name, problem: `missing ${name} [${shape}]${hint}` };
  } else if (String(entry.shape) !== String(shape)) {
    yield { kind: 'shape', name, problem: `${name} is [${entry.shape}], not [${shape}]` };
  } else if (!DECODERS[entry.dtype]) {
    const problem = `${name} has the unsupported dtype ${entry.dtype}`;
    yield { kind: 'dtype', name, dtype: entry.dtype, problem };
  }
}

/** Every scale belongs to a quantized weight, and every quantized weight has one, if any has. */
function accountScales(
  used: ReadonlyMap<string, readonly number[]>,
  stored: StoredEntries,
  quantization: Quantization | undefined,
) {
  const scales = new Map<string, ScaleShape>();
  const problems: TensorMismatch[] = [];
  const add = (name: string, problem: string) => problems.push({ kind: 'scale', name, problem });
  const quantized = [...used].filter(([name]) => isQuantized(stored.get(name)?.entry.dtype));
  const scaled =
    quantization !== undefined || [...stored.keys()].some((name) => scalesOwner(name) !== undefined);
  for (const [name, shape] of scaled ? quantized : []) {
    const scale = stored.get(scalesName(name))?.entry;
    const at = scalesName(name);
    if (!scale) add(at, `missing ${at}, the scales of ${name} (${stored.get(name)!.entry.dtype})`);
    else {
      const expected = scaleShape(shape, quantization);
      const problem = scaleProblem(scale, expected);
      if (problem) add(at, `${at}, the scales of ${name}, ${problem}`);
      else scales.set(name, expected);
    }
  }
  for (const name of stored.keys()) {
    const owner = scalesOwner(name);
    if (owner === undefined) continue;
    const entry = stored.get(owner)?.entry;
    if (!entry || !used.has(owner)) add(name, `surplus ${name}: the model has no ${owner} to scale`);
    else if (!isQuantized(entry.dtype))
      add(name, `surplus ${name}: ${owner} is ${entry.dtype} and has no scales`);
  }
  const notes =
    !scaled && quantized.length > 0
      ? [
          `${quantized.length} tensors in eight bits have no scales, and config.json speaks of none: used as they are`,
        ]
      : [];
  return { scales, problems, notes };
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
  const count = mismatches.length === 1 ? '1 tensor does' : `${mismatches.length} tensors do`;
  throw new CflowError(
    onlyDtypes ? 'UNSUPPORTED' : 'TENSOR_MISMATCH',
    `${count} not match the configuration${dtypes && ` (${dtypes})`}: ${listOf(mismatches.map((m) => m.problem))}`,
    {
      file,
      value: mismatches.length,
      remedy: onlyDtypes
        ? `weights must be ${Object.keys(DECODERS).join(', ')}`
        : 'do config.json and weights belong together?',
    },
  );
}
