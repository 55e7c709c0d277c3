/** Fields that chat and completions share, and parts of their answers. */
import { z } from 'zod';
import { LIMITS } from '../limits.js';
import { ignored, OPTION_FIELDS, only, optional } from './options.js';

const stopText = z.string().min(1);

/** Fields of both kinds of request. */
export const COMMON_FIELDS = {
  model: z.string().describe('A name that /v1/models lists'),
  ...OPTION_FIELDS,
  stop: optional(
    z.union([stopText, z.array(stopText).max(LIMITS.stops)]),
    'Texts before which the answer ends',
  ),
  n: optional(z.int().min(1).max(LIMITS.choices), 'Answers to each prompt'),
  stream: optional(z.boolean(), 'Server-sent events instead of one document'),
  stream_options: optional(
    z.strictObject({
      include_usage: optional(z.boolean(), 'A last event with the number of tokens'),
      include_obfuscation: ignored('events carry no padding'),
    }),
    'Of streams only',
  ),
  user: ignored('no record is kept of users'),
  safety_identifier: ignored('no record is kept of users'),
  metadata: ignored('nothing is stored'),
  store: only(false, 'nothing is stored'),
  service_tier: ignored('there is one tier'),
  prompt_cache_key: ignored('prefixes are shared whatever the key'),
  prompt_cache_retention: ignored('prefixes are shared whatever the key'),
};

/** Tokens of a request. */
export const usageSchema = z.object({
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  total_tokens: z.int(),
});
/** As `usageSchema`. */
export type Usage = z.infer<typeof usageSchema>;

/** The body of every error. */
export const errorSchema = z.object({
  error: z.object({
    message: z.string(),
    type: z.string(),
    param: z.string().nullable(),
    code: z.string().nullable(),
  }),
});
