/** What generation_config.json says about sampling. */
import type { Metadata } from '@cflow/format';
import type { JsonObject } from '../json.js';

type Generation = NonNullable<Metadata['generation']>;

/** Field of generation_config.json, its name here, and what is accepted. */
const FIELDS: readonly (readonly [string, keyof Generation, (value: number) => boolean])[] = [
  ['temperature', 'temperature', (value) => value >= 0 && value <= 100],
  ['top_k', 'topK', (value) => Number.isInteger(value) && value >= 0 && value <= 2 ** 31],
  ['top_p', 'topP', (value) => value >= 0 && value <= 1],
  ['min_p', 'minP', (value) => value >= 0 && value <= 1],
  ['typical_p', 'typicalP', (value) => value >= 0 && value <= 1],
  ['repetition_penalty', 'repetitionPenalty', (value) => value > 0 && value <= 100],
];

/** Undefined where it says nothing; `note` is told of values that are not taken. */
export function readGeneration(
  json: JsonObject | undefined,
  note: (text: string) => void,
): Generation | undefined {
  const found: Partial<Record<keyof Generation, number>> = {};
  for (const [field, name, accepts] of FIELDS) {
    const value = json?.[field];
    if (value === undefined || value === null) continue;
    if (typeof value === 'number' && accepts(value)) found[name] = value;
    else note(`generation_config.json: ${field} ${JSON.stringify(value)} is ignored`);
  }
  if (json?.do_sample === false) found.temperature = 0;
  return Object.keys(found).length > 0 ? found : undefined;
}
