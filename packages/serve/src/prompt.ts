/** Requests to token ids. */
import { type ChatMessage, ChatTemplate, type Model, type TemplateVariables } from '@cflow/runtime-native';
import { badRequest } from './errors.js';
import type { ChatRequest } from './schema/chat.js';
import type { CompletionRequest } from './schema/completions.js';

/** Encodes the prompts of one model. */
export class PromptEncoder {
  readonly #model: Model;
  readonly #template: ChatTemplate | undefined;
  readonly #control: ReturnType<NonNullable<Model['tokenizer']>['controlTokens']> | undefined;

  constructor(model: Model) {
    this.#model = model;
    const { tokenizer } = model.metadata ?? {};
    if (tokenizer?.chatTemplate === undefined || !model.tokenizer) return;
    this.#template = new ChatTemplate(tokenizer);
    this.#control = model.tokenizer.controlTokens(this.#template.source);
  }

  /** Ids of each prompt of a request. @throws CflowError as TextTokenizer.encode */
  completion({ prompt }: Pick<CompletionRequest, 'prompt'>): (readonly number[])[] {
    const prompts = typeof prompt === 'string' || typeof prompt[0] === 'number' ? [prompt] : prompt;
    return (prompts as (string | number[])[]).map((each) =>
      typeof each === 'string' ? this.#model.requireTokenizer().encode(each) : each,
    );
  }

  /**
   * Ids of a conversation. Control tokens in messages are plain text.
   * @throws ApiError if the model has no template; CflowError as ChatTemplate.render
   */
  async chat({ messages, chat_template_kwargs }: Pick<ChatRequest, 'messages' | 'chat_template_kwargs'>) {
    const [template, control] = [this.#template, this.#control];
    if (!template || !control) {
      throw badRequest('the model has no chat template; use /v1/completions', 'model', 'no_chat_template');
    }
    const marked = control.mark(messages.map(ofTemplate));
    const rendered = await template.render(
      marked.messages,
      (chat_template_kwargs ?? {}) as TemplateVariables,
    );
    const tokenizer = this.#model.requireTokenizer();
    return marked.found
      ? tokenizer.encodeAliased(control.alias(rendered), control)
      : tokenizer.encode(rendered, { specialTokens: false });
  }
}

/** A message as templates know it: texts in one piece, and no fields without a value. */
function ofTemplate({ role, content, name }: ChatRequest['messages'][number]): ChatMessage {
  const text = Array.isArray(content) ? content.map((part) => part.text).join('\n') : (content ?? '');
  return { role: role === 'developer' ? 'system' : role, content: text, ...(name ? { name } : {}) };
}
