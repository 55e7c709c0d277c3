import { CflowError, type ModelConfig, parseModelConfig } from '@cflow/format';
import type { JsonObject } from '../json.js';
import { cflow } from './cflow.js';
import { type ConfigContext, type Family, lookUp } from './family.js';
import { llama } from './llama.js';

export * from './family.js';
export { cflow, llama };

/** Every kind of checkpoint that can be read, by `model_type`. */
export const FAMILIES: Readonly<Record<string, Family>> = Object.fromEntries(
  [llama, cflow].map((family) => [family.modelType, family]),
);

/**
 * The family and configuration that a config.json means.
 * @throws CflowError UNSUPPORTED (model_type or a feature, by name), CONFIG_INVALID (fields)
 */
export function readModelConfig(
  json: JsonObject,
  context: ConfigContext,
): { family: Family; config: ModelConfig } {
  const type = json.model_type;
  if (typeof type !== 'string') {
    throw new CflowError('CONFIG_INVALID', 'missing or not a string', {
      file: context.file,
      field: 'model_type',
      value: type,
      remedy: `supported: ${Object.keys(FAMILIES).join(', ')}`,
    });
  }
  const family = lookUp(FAMILIES, type, 'model_type', context.file);
  return { family, config: parseModelConfig(family.configFrom(json, context), context.file) };
}
