/** /v1/completions: a text is continued. */
import { z } from 'zod';
import { LIMITS } from '../limits.js';
import { COMMON_FIELDS, usageSchema } from './common.js';
import { only, optional, refused } from './options.js';

/** Tokens of an answer where nothing is said, as OpenAI has it. */
export const DEFAULT_COMPLETION_TOKENS = 16;

const ids = z.array(z.int().min(0)).min(1);

/** A request. */
export const completionRequest = z.strictObject({
  ...COMMON_FIELDS,
  prompt: z
    .union(
      [
        z.string(),
        z.array(z.string()).min(1).max(LIMITS.choices),
        ids,
        z.array(ids).min(1).max(LIMITS.choices),
      ],
      { error: `a text or token ids is expected, or up to ${LIMITS.choices} of them` },
    )
    .describe('A text or token ids, or several of them'),
  max_tokens: optional(z.int().min(1), `Absent = ${DEFAULT_COMPLETION_TOKENS}`),
  logprobs: optional(z.int().min(0).max(20), 'Log-probabilities of the tokens, and of so many alternatives'),
  best_of: only(1, 'answers are not ranked'),
  echo: only(false, 'the prompt is not part of the answer'),
  suffix: refused('nothing is inserted'),
});
/** As `completionRequest`. */
export type CompletionRequest = z.infer<typeof completionRequest>;

const logprobs = z.object({
  tokens: z.array(z.string()),
  token_logprobs: z.array(z.number()),
  top_logprobs: z.array(z.record(z.string(), z.number())),
  text_offset: z.array(z.int()),
});
/** Log-probabilities as completions have them. */
export type CompletionLogprobs = z.infer<typeof logprobs>;

/** An answer; of a stream, one event. */
export const completionAnswer = z.object({
  id: z.string(),
  object: z.literal('text_completion'),
  created: z.int(),
  model: z.string(),
  choices: z.array(
    z.object({
      index: z.int(),
      text: z.string(),
      logprobs: logprobs.nullable(),
      finish_reason: z.enum(['stop', 'length', 'tool_calls']).nullable(),
    }),
  ),
  usage: usageSchema.nullish(),
});
/** As `completionAnswer`. */
export type CompletionAnswer = z.infer<typeof completionAnswer>;
