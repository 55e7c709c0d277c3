/** What generation_config.json says about sampling. */
import type { Metadata } from '@cflow/format';
import type { JsonObject, JsonValue } from '../json.js';

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

/** What changes the tokens that are generated and no sampler here takes, with the value that changes none. */
const NOT_TAKEN: Readonly<Record<string, number | false | undefined>> = {
  no_repeat_ngram_size: 0,
  encoder_no_repeat_ngram_size: 0,
  encoder_repetition_penalty: 1,
  bad_words_ids: undefined,
  force_words_ids: undefined,
  constraints: undefined,
  sequence_bias: undefined,
  suppress_tokens: undefined,
  begin_suppress_tokens: undefined,
  forced_bos_token_id: undefined,
  forced_eos_token_id: undefined,
  forced_decoder_ids: undefined,
  exponential_decay_length_penalty: undefined,
  min_length: 0,
  min_new_tokens: 0,
  stop_strings: undefined,
  num_beams: 1,
  num_beam_groups: 1,
  diversity_penalty: 0,
  penalty_alpha: 0,
  dola_layers: undefined,
  guidance_scale: 1,
  epsilon_cutoff: 0,
  eta_cutoff: 0,
  top_h: undefined,
  renormalize_logits: false,
  watermarking_config: undefined,
};
/** Characters of a value in messages. */
const MOST_SHOWN = 60;

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
    else note(ignored(field, value));
  }
  for (const [field, neutral] of Object.entries(NOT_TAKEN)) {
    const value = json?.[field];
    const none = value === undefined || value === null || (Array.isArray(value) && value.length === 0);
    if (!none && value !== neutral) note(ignored(field, value));
  }
  if (json?.do_sample === false) found.temperature = 0;
  return Object.keys(found).length > 0 ? found : undefined;
}

const ignored = (field: string, value: JsonValue) =>
  `generation_config.json: ${field} ${JSON.stringify(value).slice(0, MOST_SHOWN)} is ignored`;
