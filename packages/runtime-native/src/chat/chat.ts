/** Conversations: turns through a model. */
import { CflowError } from '@cflow/format';
import type { Model } from '../model.js';
import {
  DEFAULT_MAX_TOKENS,
  type GeneratedToken,
  type GenerateOptions,
  type SessionStats,
} from '../session.js';
import type { ControlTokens } from './control-tokens.js';
import { type ChatMessage, ChatTemplate, type TemplateVariables } from './template.js';

/** What a conversation begins with. */
export interface ChatOptions {
  /** The message of the system. */
  readonly system?: string | undefined;
  /** What the template sees beside the messages. */
  readonly variables?: TemplateVariables | undefined;
  /** Told when turns are dropped because the context is full: how many messages. */
  readonly onDropped?: ((messages: number) => void) | undefined;
}

/** A part of the context that is kept free for an answer, where nothing is said about its length. */
const ANSWER_SHARE = 1 / 4;

/** One conversation. Every turn passes the whole of it through the model again. */
export class Chat {
  readonly #model: Model;
  readonly #template: ChatTemplate;
  readonly #options: ChatOptions;
  readonly #control: ControlTokens;
  readonly #messages: ChatMessage[];
  #stats: SessionStats | undefined;

  /** @throws CflowError UNSUPPORTED or USAGE if the file has no template, or no tokenizer that can be used */
  constructor(model: Model, options: ChatOptions = {}) {
    this.#model = model;
    this.#template = new ChatTemplate(model.metadata?.tokenizer);
    this.#control = model.requireTokenizer().controlTokens(this.#template.source);
    this.#options = options;
    const { system } = options;
    this.#messages = system === undefined ? [] : [{ role: 'system', content: system }];
  }

  get messages(): readonly ChatMessage[] {
    return this.#messages;
  }

  /** Figures of the last turn; undefined before the first. */
  get stats(): SessionStats | undefined {
    return this.#stats;
  }

  /** @throws CflowError UNSUPPORTED if the template cannot be used */
  check(): Promise<void> {
    return this.#template.check();
  }

  /**
   * Ids of the conversation with `text` as the next message of the user. Control tokens in messages are plain text.
   * @throws CflowError as ChatTemplate.render
   */
  prompt(text: string): Promise<number[]> {
    return this.#encode([...this.#messages, { role: 'user', content: text }]);
  }

  /**
   * The model's answer, token by token; the exchange is kept once the answer is complete. When the context is full, the
   * oldest turns are forgotten.
   * @throws CflowError as ChatTemplate.render and Session.generate; LIMIT_EXCEEDED for a message that does not fit alone
   */
  async *reply(
    text: string,
    options: Omit<GenerateOptions, 'ids'> = {},
  ): AsyncGenerator<GeneratedToken, void, void> {
    const ids = await this.#fitting(text, options.maxTokens);
    const session = this.#model.createSession();
    const room = this.#model.config.contextLength - ids.length + 1;
    const maxTokens = options.maxTokens && Math.min(options.maxTokens, room);
    let content = '';
    try {
      for await (const token of session.generate({ ...options, maxTokens, ids })) {
        content += token.text;
        yield token;
      }
      this.#stats = session.stats();
    } finally {
      await session.close();
    }
    this.#messages.push({ role: 'user', content: text }, { role: 'assistant', content });
  }

  async #encode(messages: readonly ChatMessage[]): Promise<number[]> {
    const marked = this.#control.mark(messages);
    const rendered = await this.#template.render(marked.messages, this.#options.variables);
    const tokenizer = this.#model.requireTokenizer();
    if (!marked.found) return tokenizer.encode(rendered, { specialTokens: false });
    return tokenizer.encodeAliased(this.#control.alias(rendered), this.#control);
  }

  /** Ids of the conversation without the oldest turns, as far as it must go to leave room for an answer. */
  async #fitting(text: string, maxTokens = DEFAULT_MAX_TOKENS): Promise<number[]> {
    const { contextLength } = this.#model.config;
    const most = contextLength + 1 - Math.min(maxTokens, Math.ceil(contextLength * ANSWER_SHARE));
    const dropped: ChatMessage[] = [];
    let ids = await this.prompt(text);
    while (ids.length > most) {
      const first = this.#messages.findIndex(({ role }) => role !== 'system');
      if (first < 0) break;
      // A turn: the message of the user with all that follows it up to the next.
      const next = this.#messages.findIndex(({ role }, i) => i > first && role === 'user');
      dropped.push(...this.#messages.splice(first, (next < 0 ? this.#messages.length : next) - first));
      ids = await this.prompt(text);
    }
    if (dropped.length > 0) this.#options.onDropped?.(dropped.length);
    if (ids.length <= contextLength) return ids;
    throw new CflowError('LIMIT_EXCEEDED', `the message has ${ids.length} tokens`, {
      value: ids.length,
      limit: contextLength,
      remedy: 'shorten it: it does not fit the context even alone',
    });
  }
}
