import { CflowError, type ModelConfig, parseModelConfig } from '@cflow/format';
import type { JsonObject } from '../json.js';
import { cflow } from './cflow.js';
import { type ConfigContext, type Family, lookUp } from './family.js';
import { DECODER_FAMILIES } from './rows.js';
import { OTHER_MODALITIES, textConfig } from './wrappers.js';

export * from './family.js';
export { cflow };

/** Every kind of checkpoint that can be read, by `model_type`. */
export const FAMILIES: Readonly<Record<string, Family>> = Object.fromEntries(
  [...DECODER_FAMILIES, cflow].map((family) => [family.modelType, family]),
);
export const llama: Family = FAMILIES.llama!;

/**
 * The family and configuration that a config.json means: of models of several modalities, those of the text part.
 * @throws CflowError UNSUPPORTED (model_type or a feature, by name), CONFIG_INVALID (fields)
 */
export function readModelConfig(
  json: JsonObject,
  context: ConfigContext,
): { family: Family; config: ModelConfig; notes: readonly string[] } {
  const { modelType, json: text, wrapped } = textConfig(json, context.file);
  if (typeof modelType !== 'string') {
    throw new CflowError('CONFIG_INVALID', 'missing or not a string', {
      file: context.file,
      field: 'model_type',
      value: modelType,
      remedy: `supported: ${Object.keys(FAMILIES).join(', ')}`,
    });
  }
  const found = lookUp(FAMILIES, modelType, 'model_type', context.file);
  const family = wrapped ? { ...found, ignorable: [...found.ignorable, OTHER_MODALITIES] } : found;
  const notes: string[] = [];
  const noted = { ...context, note: (line: string) => void notes.push(line) };
  return { family, config: parseModelConfig(found.configFrom(text, noted), context.file), notes };
}
