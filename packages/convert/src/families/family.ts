import { CflowError, type ModelConfigInput } from '@cflow/format';
import type { z } from 'zod';
import type { JsonObject } from '../json.js';

export interface ConfigContext {
  /** What the model is called: its directory or repository. */
  name: string;
  /** What errors call config.json. */
  file: string;
  /** generation_config.json, where there is one; its token ids win over those of config.json. */
  generation?: JsonObject | undefined;
}

/** A kind of checkpoint as data: a new one is a row in `index.ts`. */
export interface Family {
  readonly modelType: string;
  /** config.json → ModelConfig. Throws CONFIG_INVALID (wrong fields) or UNSUPPORTED (features by name). */
  readonly configFrom: (json: JsonObject, context: ConfigContext) => ModelConfigInput;
  /** Canonical name pattern → name in the checkpoint; `{layer}` and `{expert}` are numbers. Absent: the same names. */
  readonly tensorNames?: Readonly<Record<string, string>>;
  /** Tensors that checkpoints may carry and nobody needs; `*` stands for anything. */
  readonly ignorable: readonly string[];
}

const INDICES = /\b(layers|experts)\.(\d+)\b/g;
const PLACEHOLDERS = { layers: 'layer', experts: 'expert' } as const;

/**
 * The checkpoint's name of a canonical tensor, e.g. `layers.3.attn.q_proj.weight` → `model.layers.3.self_attn.q_proj.weight`.
 * @throws CflowError UNSUPPORTED for a tensor that the family does not have
 */
export function checkpointName(family: Family, canonical: string): string {
  if (!family.tensorNames) return canonical;
  const indices: Record<string, string> = {};
  const pattern = canonical.replace(INDICES, (_, kind: keyof typeof PLACEHOLDERS, index: string) => {
    indices[PLACEHOLDERS[kind]] = index;
    return `${kind}.{${PLACEHOLDERS[kind]}}`;
  });
  const name = family.tensorNames[pattern];
  if (name === undefined) {
    throw new CflowError('UNSUPPORTED', `checkpoints of ${family.modelType} have no ${canonical}`);
  }
  return name.replace(/\{(\w+)\}/g, (_, index: string) => indices[index]!);
}

/** Whether the family allows `name` to be left over. */
export function isIgnorable(family: Family, name: string): boolean {
  return family.ignorable.some((pattern) => {
    const [head = '', tail] = pattern.split('*');
    return tail === undefined ? name === pattern : name.startsWith(head) && name.endsWith(tail);
  });
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
