/** Conversations: the chat template of a model's tokenizer, and turns through a model. */
import { CflowError, type Metadata } from '@cflow/format';
import { Template } from '@huggingface/jinja';
import type { Model } from './model.js';
import type { GeneratedToken, GenerateOptions } from './session.js';

type TokenizerMetadata = NonNullable<Metadata['tokenizer']>;

export interface ChatMessage {
  /** `system`, `user`, `assistant`, or whatever else the template knows. */
  readonly role: string;
  readonly content: string;
}

/** Special tokens that templates name, as tokenizer_config.json has them: a text, or an object with one. */
const SPECIAL = ['bos_token', 'eos_token', 'unk_token', 'pad_token'] as const;

/** The Jinja template of a tokenizer. */
export class ChatTemplate {
  readonly #template: Template;
  readonly #special: Readonly<Record<string, string>>;

  /** @throws CflowError UNSUPPORTED without a template, or for one that does not parse */
  constructor(tokenizer: Pick<TokenizerMetadata, 'chatTemplate' | 'tokenizerConfigJson'> | undefined) {
    if (tokenizer?.chatTemplate === undefined) {
      throw new CflowError('UNSUPPORTED', 'the file has no chat template', { remedy: 'use --prompt alone' });
    }
    try {
      this.#template = new Template(tokenizer.chatTemplate);
    } catch (cause) {
      throw new CflowError('UNSUPPORTED', `the chat template cannot be used: ${(cause as Error).message}`, {
        cause,
      });
    }
    this.#special = specialTokens(tokenizer.tokenizerConfigJson);
  }

  /**
   * The text of a conversation, to be continued by the model.
   * @throws CflowError USAGE where the template refuses the messages, e.g. roles that do not alternate
   */
  render(messages: readonly ChatMessage[]): string {
    try {
      return this.#template.render({
        ...this.#special,
        messages: [...messages],
        add_generation_prompt: true,
      });
    } catch (cause) {
      throw new CflowError('USAGE', `the chat template refuses the messages: ${(cause as Error).message}`, {
        cause,
      });
    }
  }
}

function specialTokens(configJson: string | undefined): Record<string, string> {
  const config = JSON.parse(configJson ?? '{}') as Record<string, unknown>;
  const text = (token: unknown) =>
    typeof token === 'object' && token !== null ? (token as { content?: unknown }).content : token;
  return Object.fromEntries(
    SPECIAL.flatMap((name) => {
      const token = text(config[name]);
      return typeof token === 'string' ? [[name, token]] : [];
    }),
  );
}

/** One conversation. Every turn passes the whole of it through the model again. */
export class Chat {
  readonly #model: Model;
  readonly #template: ChatTemplate;
  readonly #messages: ChatMessage[];

  /** @throws CflowError UNSUPPORTED if the file has no tokenizer or no template that can be used */
  constructor(model: Model, system?: string) {
    this.#model = model;
    this.#template = new ChatTemplate(model.metadata?.tokenizer);
    this.#messages = system === undefined ? [] : [{ role: 'system', content: system }];
  }

  get messages(): readonly ChatMessage[] {
    return this.#messages;
  }

  /** Ids of the conversation with `text` as the next message of the user. */
  prompt(text: string): number[] {
    const rendered = this.#template.render([...this.#messages, { role: 'user', content: text }]);
    return this.#model.tokenizer!.encode(rendered, { specialTokens: false });
  }

  /**
   * The model's answer, token by token; the exchange is kept once the answer is complete.
   * @throws CflowError USAGE (messages that the template refuses), and as Session.generate
   */
  async *reply(
    text: string,
    options: Omit<GenerateOptions, 'ids'> = {},
  ): AsyncGenerator<GeneratedToken, void, void> {
    const session = this.#model.createSession();
    let content = '';
    try {
      for await (const token of session.generate({ ...options, ids: this.prompt(text) })) {
        content += token.text;
        yield token;
      }
    } finally {
      await session.close();
    }
    this.#messages.push({ role: 'user', content: text }, { role: 'assistant', content });
  }
}
