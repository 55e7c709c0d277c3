/** Requests to token ids. */
import {
  type AnswerContext,
  type AnswerFormat,
  type AnswerPart,
  answerFormat,
  type ChatMessage,
  ChatTemplate,
  type GeneratedToken,
  type Model,
} from '@cflow/runtime-native';
import { withParsedArguments } from '@cflow/runtime-native/internal/chat/answer/message.js';
import type { EncodeKind } from './encode-worker.js';
import { Encoder } from './encoder.js';
import { badRequest } from './errors.js';
import type { ChatRequest } from './schema/chat.js';
import type { CompletionRequest } from './schema/completions.js';

/** Takes one answer apart: the parts that a further token makes certain. */
export type AnswerReader = (token: GeneratedToken) => readonly AnswerPart[];

type ChatPrompt = Pick<ChatRequest, 'messages' | 'chat_template_kwargs' | 'tools' | 'tool_choice'>;

/** Characters of a prompt's end that may have begun the answer. */
const PROMPT_END = 64;

/** What conversations need; undefined for a model without a chat template. */
function chatOf({ metadata, tokenizer }: Model) {
  if (metadata?.tokenizer?.chatTemplate === undefined || !tokenizer) return undefined;
  const template = new ChatTemplate(metadata.tokenizer);
  const { source } = template;
  return { template, control: tokenizer.controlTokens(source), format: answerFormat(source) };
}

/** Encodes the prompts of one model. */
export class PromptEncoder {
  readonly #model: Model;
  readonly #chat: ReturnType<typeof chatOf>;
  #encoder: Encoder | undefined;

  constructor(model: Model) {
    this.#model = model;
    this.#chat = chatOf(model);
  }

  /** Ids of each prompt of a request. @throws CflowError as Encoder.encode */
  completion(
    { prompt }: Pick<CompletionRequest, 'prompt'>,
    signal: AbortSignal,
  ): Promise<(readonly number[])[]> {
    const prompts = typeof prompt === 'string' || typeof prompt[0] === 'number' ? [prompt] : prompt;
    const ids = (prompts as (string | number[])[]).map(async (each) =>
      typeof each === 'string' ? this.#encode('prompt', each, signal) : each,
    );
    return Promise.all(ids);
  }

  /**
   * Ids of a conversation, and what takes its answers apart. Control tokens in messages are plain text.
   * @throws ApiError if the model has no template; CflowError as ChatTemplate.render
   */
  async chat(request: ChatPrompt, signal: AbortSignal) {
    const chat = this.#chat;
    if (!chat) {
      throw badRequest('the model has no chat template; use /v1/completions', 'model', 'no_chat_template');
    }
    const tools = request.tool_choice === 'none' ? [] : (request.tools ?? []);
    const marked = chat.control.mark(request.messages.map(ofTemplate).map(withParsedArguments));
    const variables = { ...request.chat_template_kwargs, ...(tools.length > 0 && { tools }) };
    const rendered = await chat.template.render(marked.messages, variables);
    const ids = await this.#encode(marked.found ? 'marked' : 'rendered', rendered, signal);
    const context = { prompt: rendered.slice(-PROMPT_END), tools: tools.length > 0 };
    return { ids, reader: () => this.#reader(chat.format, context) };
  }

  /** Frees what encodes long texts. */
  async close(): Promise<void> {
    await this.#encoder?.close();
  }

  async #encode(kind: EncodeKind, text: string, signal: AbortSignal): Promise<number[]> {
    this.#encoder ??= new Encoder(this.#model);
    return this.#encoder.encode(kind, text, signal);
  }

  #reader(format: AnswerFormat, context: AnswerContext): AnswerReader {
    const parser = format.parser(context);
    const tokenizer = this.#model.requireTokenizer();
    // Markers may be special tokens, which texts lack.
    const marker = ({ id, finish }: GeneratedToken) => {
      const special = finish === 'eos' ? undefined : tokenizer.specialToken(id);
      return special !== undefined && format.markers.has(special) ? special : '';
    };
    return (token) => [...parser.push(token.text + marker(token)), ...(token.finish ? parser.flush() : [])];
  }
}

/** A message as templates know it: texts in one piece, and no fields without a value. */
function ofTemplate({ content, ...message }: ChatRequest['messages'][number]): ChatMessage {
  const text = Array.isArray(content) ? content.map((part) => part.text).join('\n') : (content ?? '');
  const given = Object.entries(message).filter(([, value]) => value != null);
  const role = message.role === 'developer' ? 'system' : message.role;
  return { ...Object.fromEntries(given), role, content: text };
}
