/** Runs .cflow and .vflow models: open a `Model`, create a `Session`, generate; or converse with `Chat`. */

export { type AnswerContext, type AnswerFormat, answerFormat } from './chat/answer/formats.js';
export type { AnswerPart, ToolCall } from './chat/answer/parts.js';
export { Chat, type ChatOptions, type ChatToken, type UserContent } from './chat/chat.js';
export { type ChatMessage, ChatTemplate, type TemplateVariables } from './chat/template.js';
export { DEFAULT_MAX_TOKENS, ENGINE_NAMES, type EngineName, SAMPLER_DEFAULTS } from './defaults.js';
export type { EngineStats, NativeStats } from './engine.js';
export type { EngineOptions } from './engine-options.js';
export type { GrammarSpec } from './grammar/constraint.js';
export { Model, type OpenModelOptions } from './model.js';
export type { NativeRouting, ProfileEntry } from './native/addon.js';
export { type Perplexity, type PerplexityOptions, perplexity, splitDocuments } from './perplexity.js';
export { Sampler, type SamplerOptions } from './sampling/sampler.js';
export { Scheduler, type SchedulerOptions, type SchedulerStats } from './serving/scheduler.js';
export {
  type FinishReason,
  type GeneratedToken,
  type GenerateOptions,
  type PrefillOptions,
  Session,
  type SessionStats,
} from './session.js';
export { TextStream } from './text/detokenizer.js';
export { type EncodeOptions, TextTokenizer } from './text/tokenizer.js';
export { type ThreadBudget, threadBudget } from './threads.js';
