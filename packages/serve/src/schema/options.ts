/** Fields of requests that are options of the generation, by the names of both. */
import type { GenerateOptions } from '@cflow/runtime-native';
import { z } from 'zod';

/** A field that may be null, which is as good as absent. */
export const optional = <T extends z.ZodType>(type: T, meaning: string) => type.nullish().describe(meaning);

/** What is accepted so that clients work, and has no effect. */
export const ignored = (meaning: string) => z.unknown().optional().describe(`Ignored: ${meaning}`);

/** A value that changes nothing is accepted; any other is refused. */
export const only = <T extends string | number | boolean>(value: T, why: string) =>
  z
    .literal(value, { error: `not supported: ${why}` })
    .nullish()
    .describe(`Only ${JSON.stringify(value)}: ${why}`);

/** Refused whatever its value, unless it is null. */
export const refused = (why: string) =>
  z
    .null({ error: `not supported: ${why}` })
    .optional()
    .describe(`Refused: ${why}`);

const real = (min: number, max: number) => z.number().min(min).max(max);

/** Options that a request and the library both have. Absent = as the model's generation_config.json has it. */
export const OPTION_FIELDS = {
  temperature: optional(real(0, 100), '0 = greedy; absent = of the model, else 0.8'),
  top_p: optional(real(0, 1), '1 = all; absent = of the model, else 0.95'),
  top_k: optional(
    z
      .int()
      .min(0)
      .max(2 ** 31),
    '0 = all; absent = of the model, else 40',
  ),
  min_p: optional(real(0, 1), 'Least probability, as a share of the largest'),
  typical_p: optional(real(0, 1), 'Locally typical sampling; 1 = off'),
  repetition_penalty: optional(z.number().gt(0).max(100), 'Divides logits of tokens of prompt and answer'),
  frequency_penalty: optional(real(-100, 100), 'For each time that a token was generated'),
  presence_penalty: optional(real(-100, 100), 'For tokens that were generated'),
  logit_bias: optional(z.record(z.string().regex(/^\d+$/), real(-100, 100)), 'Added to logits, by token id'),
  seed: optional(
    z
      .int()
      .min(0)
      .max(2 ** 32 - 1),
    'Choice i of a request takes seed + i; random if absent',
  ),
  ignore_eos: optional(z.boolean(), 'Go on after an end-of-text token'),
};

type OptionField = keyof typeof OPTION_FIELDS;
type Options = { readonly [Field in OptionField]?: z.infer<(typeof OPTION_FIELDS)[Field]> };

const LIBRARY_NAMES = {
  temperature: 'temperature',
  top_p: 'topP',
  top_k: 'topK',
  min_p: 'minP',
  typical_p: 'typicalP',
  repetition_penalty: 'repetitionPenalty',
  frequency_penalty: 'frequencyPenalty',
  presence_penalty: 'presencePenalty',
  logit_bias: 'logitBias',
  seed: 'seed',
  ignore_eos: 'ignoreEos',
} as const satisfies Record<OptionField, keyof GenerateOptions>;

/** Names of the library that are not those of a request's options. */
const OTHER_FIELDS: Readonly<Record<string, string>> = {
  maxTokens: 'max_tokens',
  stop: 'stop',
  logprobs: 'logprobs',
};

/** Options of the library from a request's. */
export function optionsOf(request: Options): GenerateOptions {
  const given = Object.entries(LIBRARY_NAMES).map(([field, name]) => [
    name,
    request[field as OptionField] ?? undefined,
  ]);
  return Object.fromEntries(given) as GenerateOptions;
}

/** The field of a request that an option of the library comes from; null where there is none. */
export function requestField(name: string | undefined): string | null {
  if (name === undefined) return null;
  // Those of schemas are paths into them.
  if (/^(grammar\b|#)/.test(name)) return 'response_format';
  const [field] = Object.entries(LIBRARY_NAMES).find(([, option]) => option === name) ?? [];
  return field ?? OTHER_FIELDS[name] ?? null;
}
