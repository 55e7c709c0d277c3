/** /v1/chat/completions: a conversation gets its next message. */
import { z } from 'zod';
import { LIMITS } from '../limits.js';
import { COMMON_FIELDS, usageSchema } from './common.js';
import { ignored, only, optional, refused } from './options.js';

const part = z.strictObject({
  type: z.literal('text', { error: 'only parts of the type "text" are supported' }),
  text: z.string(),
});
const content = z.union([z.string(), z.array(part).min(1)], {
  error:
    'a text or an array of parts of the type "text" is expected; images, audio and files are not supported',
});

const functionName = z.string().regex(/^[\w-]{1,64}$/, 'letters, digits, _ and -, at most 64, are expected');
/** A call of a tool, as answers have it and messages repeat it. */
const toolCall = z.strictObject({
  id: z.string(),
  type: z.literal('function'),
  function: z.strictObject({ name: z.string(), arguments: z.string().describe('A JSON text') }),
});
/** As `toolCall`. */
export type ToolCallField = z.infer<typeof toolCall>;

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
        reasoning_content: optional(z.string(), 'As the answer had it'),
        tool_calls: optional(z.array(toolCall).max(LIMITS.toolCalls), 'As the answer had them'),
        name: optional(z.string(), ''),
        refusal: refused('models here do not refuse apart from their text'),
        audio: refused('answers are texts'),
      }),
      z.strictObject({ role: z.literal('tool'), content, tool_call_id: z.string() }),
    ]),
  )
  .min(1)
  .max(LIMITS.messages);

const tool = z.strictObject({
  type: z.literal('function', { error: 'only tools of the type "function" are supported' }),
  function: z.strictObject({
    name: functionName,
    description: optional(z.string(), ''),
    parameters: optional(z.record(z.string(), z.unknown()), 'A JSON schema'),
    strict: only(false, 'calls are as the model writes them'),
  }),
});

const responseFormat = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('text') }),
  z.strictObject({ type: z.literal('json_object') }),
  z.strictObject({
    type: z.literal('json_schema'),
    json_schema: z.strictObject({
      name: functionName,
      description: ignored('the model does not see it'),
      schema: z.record(z.string(), z.unknown()),
      strict: ignored('answers follow the schema in any case'),
    }),
  }),
]);

/** A request. */
export const chatRequest = z.strictObject({
  ...COMMON_FIELDS,
  messages: messages.describe('The conversation; `developer` is `system` to the template'),
  max_tokens: optional(z.int().min(1), 'As max_completion_tokens'),
  max_completion_tokens: optional(z.int().min(1), 'Absent = as many as fit the context, or --max-tokens'),
  logprobs: optional(z.boolean(), 'Log-probabilities of the tokens'),
  top_logprobs: optional(z.int().min(0).max(20), 'Alternatives of each token; with logprobs'),
  chat_template_kwargs: optional(z.record(z.string(), z.unknown()), 'Variables of the chat template'),
  response_format: optional(responseFormat, 'What the answer must be; a grammar sees to it'),
  modalities: optional(z.tuple([z.literal('text')]), 'Only ["text"]'),
  tools: optional(z.array(tool).max(LIMITS.tools), 'Functions that the model may call'),
  tool_choice: optional(
    z.enum(['none', 'auto'], { error: 'only "none" and "auto" are supported' }),
    '"none": the model is not told of the tools',
  ),
  parallel_tool_calls: only(true, 'how many calls there are is up to the model'),
  functions: refused('use tools'),
  function_call: refused('use tool_choice'),
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

const finish = z.enum(['stop', 'length', 'tool_calls']).nullable();
const common = { id: z.string(), created: z.int(), model: z.string() };

/** An answer. */
export const chatAnswer = z.object({
  ...common,
  object: z.literal('chat.completion'),
  choices: z.array(
    z.object({
      index: z.int(),
      message: z.object({
        role: z.literal('assistant'),
        content: z.string().nullable(),
        reasoning_content: z.string().optional(),
        tool_calls: z.array(toolCall).optional(),
        refusal: z.null(),
      }),
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
      delta: z.object({
        role: z.literal('assistant').optional(),
        content: z.string().optional(),
        reasoning_content: z.string().optional(),
        tool_calls: z.array(toolCall.extend({ index: z.int() })).optional(),
      }),
      logprobs: logprobs.nullable(),
      finish_reason: finish,
    }),
  ),
  usage: usageSchema.nullish(),
});
/** As `chatChunk`. */
export type ChatChunk = z.infer<typeof chatChunk>;
