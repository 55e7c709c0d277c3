/** /v1/chat/completions: a conversation gets its next message. */
import { z } from 'zod';
import { LIMITS } from '../limits.js';
import { COMMON_FIELDS, usageSchema } from './common.js';
import { only, optional, refused } from './options.js';

const part = z.strictObject({
  type: z.literal('text', { error: 'only parts of the type "text" are supported' }),
  text: z.string(),
});
const content = z.union([z.string(), z.array(part).min(1)], {
  error:
    'a text or an array of parts of the type "text" is expected; images, audio and files are not supported',
});

const messages = z
  .array(
    z.discriminatedUnion('role', [
      z.strictObject({
        role: z.enum(['system', 'developer', 'user']),
        content,
        name: optional(z.string(), ''),
      }),
      z.strictObject({
        role: z.literal('assistant'),
        content: content.nullish(),
        name: optional(z.string(), ''),
        refusal: refused('models here do not refuse apart from their text'),
        audio: refused('answers are texts'),
      }),
    ]),
  )
  .min(1)
  .max(LIMITS.messages);

/** A request. */
export const chatRequest = z.strictObject({
  ...COMMON_FIELDS,
  messages: messages.describe('The conversation; `developer` is `system` to the template'),
  max_tokens: optional(z.int().min(1), 'As max_completion_tokens'),
  max_completion_tokens: optional(z.int().min(1), 'Absent = as many as fit the context, or --max-tokens'),
  logprobs: optional(z.boolean(), 'Log-probabilities of the tokens'),
  top_logprobs: optional(z.int().min(0).max(20), 'Alternatives of each token; with logprobs'),
  chat_template_kwargs: optional(z.record(z.string(), z.unknown()), 'Variables of the chat template'),
  response_format: optional(
    z.strictObject({ type: z.literal('text', { error: 'only "text" is supported' }) }),
    'Only {"type": "text"}',
  ),
  modalities: optional(z.tuple([z.literal('text')]), 'Only ["text"]'),
  parallel_tool_calls: refused('there are no tools'),
  tools: refused('there are no tools'),
  tool_choice: only('none', 'there are no tools'),
  functions: refused('there are no tools'),
  function_call: only('none', 'there are no tools'),
  reasoning_effort: refused('use chat_template_kwargs, with the variables of the model’s template'),
  verbosity: refused('say it in a message'),
  audio: refused('answers are texts'),
  prediction: refused('there is no speculation on predicted texts'),
  web_search_options: refused('nothing is searched'),
});
/** As `chatRequest`. */
export type ChatRequest = z.infer<typeof chatRequest>;

const tokenLogprob = z.object({ token: z.string(), logprob: z.number(), bytes: z.array(z.int()).nullable() });
const logprobs = z.object({
  content: z.array(tokenLogprob.extend({ top_logprobs: z.array(tokenLogprob) })),
  refusal: z.null(),
});
/** Log-probabilities as chats have them. */
export type ChatLogprobs = z.infer<typeof logprobs>;

const finish = z.enum(['stop', 'length']).nullable();
const common = { id: z.string(), created: z.int(), model: z.string() };

/** An answer. */
export const chatAnswer = z.object({
  ...common,
  object: z.literal('chat.completion'),
  choices: z.array(
    z.object({
      index: z.int(),
      message: z.object({ role: z.literal('assistant'), content: z.string().nullable(), refusal: z.null() }),
      logprobs: logprobs.nullable(),
      finish_reason: finish,
    }),
  ),
  usage: usageSchema,
});
/** As `chatAnswer`. */
export type ChatAnswer = z.infer<typeof chatAnswer>;

/** One event of a stream. */
export const chatChunk = z.object({
  ...common,
  object: z.literal('chat.completion.chunk'),
  choices: z.array(
    z.object({
      index: z.int(),
      delta: z.object({ role: z.literal('assistant').optional(), content: z.string().optional() }),
      logprobs: logprobs.nullable(),
      finish_reason: finish,
    }),
  ),
  usage: usageSchema.nullish(),
});
/** As `chatChunk`. */
export type ChatChunk = z.infer<typeof chatChunk>;
