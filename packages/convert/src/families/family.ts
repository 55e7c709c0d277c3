import {
  CflowError,
  type ModelConfig,
  type ModelConfigInput,
  modelTensors,
  type TensorSpec,
} from '@cflow/format';
import type { z } from 'zod';
import type { JsonObject } from '../json.js';

export interface ConfigContext {
  /** What the model is called: its directory or repository. */
  name: string;
  /** What errors call config.json. */
  file: string;
  /** generation_config.json, where there is one; its token ids win over those of config.json. */
  generation?: JsonObject | undefined;
  /** Shapes of stored tensors by the checkpoint's names; undefined without weights. */
  shapeOf?: ((name: string) => readonly number[] | undefined) | undefined;
  /** Takes a line for whatever was ignored, derived or dropped. */
  note?: ((line: string) => void) | undefined;
}

/** All experts of a layer in one stored tensor of three dimensions. */
export interface FusedRule {
  readonly name: string;
  /** Which of the tensors side by side in one expert: [of, how many]. Gate and up are [0, 2] and [1, 2], down [0, 1]. */
  readonly part: readonly [number, number];
  /** `rows`: [experts, out, in], as a linear layer; `columns`: [experts, in, out]. */
  readonly order: 'rows' | 'columns';
}

/** Canonical name pattern → where in the checkpoint; `{layer}` and `{expert}` are numbers. */
export type NameTable = Readonly<Record<string, string | FusedRule>>;

/** A kind of checkpoint as data: a new one is a row in `rows.ts`. */
export interface Family {
  readonly modelType: string;
  /** config.json → ModelConfig. Throws CONFIG_INVALID (wrong fields) or UNSUPPORTED (features by name). */
  readonly configFrom: (json: JsonObject, context: ConfigContext) => ModelConfigInput;
  /** Absent: the checkpoint has the canonical names. Names begin with `model.` or `lm_head.`. */
  readonly tensorNames?: NameTable;
  /**
   * Other ways in which the same tensors are saved, in place of rows of `tensorNames`: taken if their names are there,
   * and if under the same names as usual, by their shapes.
   */
  readonly otherNames?: readonly NameTable[];
  /** What stands for `model.` at the beginning of names, the usual first. Absent: `model.` alone. */
  readonly prefixes?: readonly string[];
  /** Added to every norm weight: 1 where weights are stored around 0. */
  readonly normOffset?: number;
  /** Tensors that checkpoints may carry and nobody needs. */
  readonly ignorable: readonly IgnoreRule[];
}

/** Tensors that are left out, and why; said whenever there are some. */
export interface IgnoreRule {
  readonly reason: string;
  /** Stored names; `*` stands for anything. */
  readonly patterns: readonly string[];
}

/** Where a tensor of the model lies in a checkpoint. */
export interface TensorPlace {
  readonly name: string;
  /** Of the stored tensor. */
  readonly shape: readonly number[];
  /** First row, the stored tensor seen as rows of its last dimension; of `transposed`, the first row of the expert. */
  readonly row: number;
  /** The expert is stored as [in, out]: the tensor's rows are columns from `column` on. */
  readonly transposed?: { readonly column: number };
  /** Added to every value. */
  readonly offset?: number;
}

const INDICES = /\b(layers|experts)\.(\d+)\b/g;
const PLACEHOLDERS = { layers: 'layer', experts: 'expert' } as const;
const NORM = /norm\.weight$/;

interface Pattern {
  readonly pattern: string;
  readonly indices: Readonly<Record<string, string>>;
}

/** `layers.3.attn_norm.weight` → `layers.{layer}.attn_norm.weight` with layer 3. */
function patternOf(canonical: string): Pattern {
  const indices: Record<string, string> = {};
  const pattern = canonical.replace(INDICES, (_, kind: keyof typeof PLACEHOLDERS, index: string) => {
    indices[PLACEHOLDERS[kind]] = index;
    return `${kind}.{${PLACEHOLDERS[kind]}}`;
  });
  return { pattern, indices };
}

const filled = (name: string, { indices }: Pattern) =>
  name.replace(/\{(\w+)\}/g, (_, index: string) => indices[index]!);

/** `lm_head.` stands beside the model, so of `language_model.model.` it is `language_model.lm_head.`. */
function prefixed(name: string, prefix: string): string {
  if (name.startsWith('model.')) return prefix + name.slice('model.'.length);
  const beside = prefix.endsWith('.model.') ? prefix.slice(0, -'model.'.length) : '';
  return beside + name;
}

function ruleOf(
  family: Family,
  table: NameTable,
  canonical: string,
  { pattern }: Pattern,
): string | FusedRule {
  const rule = table[pattern];
  if (rule !== undefined) return rule;
  throw new CflowError('UNSUPPORTED', `checkpoints of ${family.modelType} have no ${canonical}`);
}

/**
 * The checkpoint's usual name of a canonical tensor, e.g. `layers.3.attn.q_proj.weight` →
 * `model.layers.3.self_attn.q_proj.weight`.
 * @throws CflowError UNSUPPORTED for a tensor that the family does not have
 */
export function checkpointName(family: Family, canonical: string): string {
  if (!family.tensorNames) return canonical;
  const pattern = patternOf(canonical);
  const rule = ruleOf(family, family.tensorNames, canonical, pattern);
  return prefixed(
    filled(typeof rule === 'string' ? rule : rule.name, pattern),
    family.prefixes?.[0] ?? 'model.',
  );
}

/** The names that a checkpoint has, where it can be asked. */
export interface StoredNames {
  has(name: string): boolean;
  /** What is known of a tensor. */
  get?(name: string): { readonly entry: { readonly shape: readonly number[] } } | undefined;
}

/**
 * Where every tensor of a model lies. Which of the family's layouts and prefixes a checkpoint has is seen by names that
 * only one of them has; shapes are the caller's to check.
 * @param stored absent: the usual layout
 * @throws CflowError UNSUPPORTED for a tensor that the family does not have
 */
export function placeTensors(
  config: ModelConfig,
  family: Family,
  stored?: StoredNames,
): Map<string, TensorPlace> {
  const { tensorNames } = family;
  const places = new Map<string, TensorPlace>();
  const prefix = prefixOf(family, stored);
  const table = tensorNames && tableOf(family, tensorNames, config, prefix, stored);
  for (const tensor of modelTensors(config)) {
    const { name, shape } = tensor;
    places.set(name, table ? placeOf(family, table, tensor, config, prefix) : { name, shape, row: 0 });
  }
  return places;
}

function prefixOf({ prefixes = ['model.'] }: Family, stored?: StoredNames): string {
  const found = prefixes.find((prefix) => stored?.has(`${prefix}embed_tokens.weight`));
  return found ?? prefixes[0]!;
}

/** The usual names, with those rows replaced that are stored in another way. */
function tableOf(
  family: Family,
  names: NameTable,
  config: ModelConfig,
  prefix: string,
  stored?: StoredNames,
): NameTable {
  const layer = config.layers.findIndex(({ experts }) => experts);
  if (!stored || !family.otherNames || layer < 0) return names;
  const experts = modelTensors({ ...config, layers: config.layers.slice(0, layer + 1) }).filter(
    (tensor) => tensor.layer === layer && (tensor.expert === 0 || tensor.name.endsWith('.router.weight')),
  );
  const places = (table: NameTable) =>
    experts.map((tensor) => placeOf(family, table, tensor, config, prefix));
  const fits = ({ name, shape }: TensorPlace) =>
    String(stored.get?.(name)?.entry.shape ?? shape) === String(shape);
  const usual = places(names);
  const usualNames = new Set(usual.map(({ name }) => name));
  for (const other of family.otherNames) {
    const table = { ...names, ...other };
    const own = places(table);
    if (!own.every(({ name }) => stored.has(name))) continue;
    const ambiguous = own.every(({ name }) => usualNames.has(name));
    if (!ambiguous || (own.every(fits) && !usual.every(fits))) return table;
  }
  return names;
}

function placeOf(
  family: Family,
  table: NameTable,
  { name: canonical, shape }: TensorSpec,
  config: ModelConfig,
  prefix: string,
): TensorPlace {
  const pattern = patternOf(canonical);
  const rule = ruleOf(family, table, canonical, pattern);
  const offset = family.normOffset && NORM.test(canonical) ? { offset: family.normOffset } : {};
  if (typeof rule === 'string')
    return { name: prefixed(filled(rule, pattern), prefix), shape, row: 0, ...offset };
  const { count } = config.layers[Number(pattern.indices.layer)]!.experts!;
  const expert = Number(pattern.indices.expert);
  const [rows = 0, cols = 0] = shape;
  const [part, parts] = rule.part;
  const name = prefixed(filled(rule.name, pattern), prefix);
  return rule.order === 'rows'
    ? { name, shape: [count, parts * rows, cols], row: (expert * parts + part) * rows }
    : {
        name,
        shape: [count, cols, parts * rows],
        row: expert * cols,
        transposed: { column: part * rows },
      };
}

const TIED_HEAD: IgnoreRule = {
  reason: 'the LM head is the embedding',
  patterns: ['lm_head.weight', 'language_model.lm_head.weight'],
};
const SHARED_KV: IgnoreRule = {
  reason: 'their layers read keys and values of another layer',
  patterns: ['*.self_attn.k_proj.*', '*.self_attn.v_proj.*', '*.self_attn.k_norm.*'],
};
const ACTIVATION_SCALES: IgnoreRule = {
  reason: 'scales of activations, which stay floats',
  patterns: ['*.input_scale', '*.activation_scale'],
};

/** The rule by which a stored tensor that the model does not use is left out; undefined if there is none. */
export function ignoreRule(family: Family, config: ModelConfig, name: string): IgnoreRule | undefined {
  const layer = Number(/layers\.(\d+)\./.exec(name)?.[1]);
  const rules = [
    ...family.ignorable,
    ACTIVATION_SCALES,
    ...(config.tiedEmbeddings ? [TIED_HEAD] : []),
    ...(config.layers[layer]?.attention.kvFrom !== undefined ? [SHARED_KV] : []),
  ];
  return rules.find(({ patterns }) => patterns.some((pattern) => matches(pattern, name)));
}

function matches(pattern: string, name: string): boolean {
  const [head = '', ...rest] = pattern.split('*');
  if (rest.length === 0) return name === pattern;
  const tail = rest.at(-1)!;
  const middle = rest.slice(0, -1).join('*');
  return (
    name.length >= head.length + middle.length + tail.length &&
    name.startsWith(head) &&
    name.endsWith(tail) &&
    name.includes(middle)
  );
}

/** Checks the fields of config.json that a family reads. Throws CONFIG_INVALID naming every wrong one. */
export function readFields<S extends z.ZodType>(schema: S, json: JsonObject, file: string): z.output<S> {
  const result = schema.safeParse(json);
  if (result.success) return result.data;
  const problems = result.error.issues.map(
    ({ path, message }) => `${path.join('.') || 'config'}: ${message}`,
  );
  throw new CflowError('CONFIG_INVALID', problems.join('; '), { file });
}

/** Looks a spelling up in a table; throws UNSUPPORTED naming it and what there is. */
export function lookUp<T>(table: Readonly<Record<string, T>>, value: string, field: string, file: string): T {
  if (Object.hasOwn(table, value)) return table[value]!;
  const known = Object.keys(table);
  throw new CflowError('UNSUPPORTED', `${JSON.stringify(value)} is not supported`, {
    file,
    field,
    value,
    limit: known,
    remedy: `supported: ${known.join(', ')}`,
  });
}
