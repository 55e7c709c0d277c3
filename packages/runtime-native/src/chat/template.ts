/** The chat template of a model's tokenizer. */
import { CflowError, type Metadata } from '@cflow/format';
import { overLimit, type RenderMessage, type RenderReply, renderApart } from './renderer.js';

type TokenizerMetadata = NonNullable<Metadata['tokenizer']>;

/** One message of a conversation. */
export interface ChatMessage extends RenderMessage {
  /** `system`, `user`, `assistant`, `tool`, or whatever else the template knows. */
  readonly role: string;
  /** A text, or parts of one; in the form that the template reads. */
  readonly content: RenderMessage['content'];
}

/** What a template may see beside the messages; by the names of transformers' apply_chat_template. */
export interface TemplateVariables {
  /** Descriptions of functions; none by default. */
  readonly tools?: readonly unknown[] | null | undefined;
  readonly documents?: readonly unknown[] | null | undefined;
  /** Whether to open the answer; default true. */
  readonly add_generation_prompt?: boolean | undefined;
  /** Options of the template: date_string, enable_thinking and so on. */
  readonly [option: string]: unknown;
}

/** Special tokens that templates name, as tokenizer_config.json has them: a text, or an object with one. */
const SPECIAL = [
  ...['bos_token', 'eos_token', 'unk_token', 'sep_token', 'pad_token', 'cls_token', 'mask_token'],
] as const;

/** What a model without a usable template is good for. */
const CONTINUE = 'it continues texts: cflow-run --prompt';

/** Characters of a template, and of a rendered conversation. */
const MAX_TEMPLATE = 1 << 20;
const MAX_CHARACTERS = 1 << 24;

/** The Jinja template of a tokenizer. */
export class ChatTemplate {
  /** Its source. */
  readonly source: string;
  readonly #special: Readonly<Record<string, string>>;

  /** @throws CflowError UNSUPPORTED without a template, LIMIT_EXCEEDED for one that is too long */
  constructor(tokenizer: Pick<TokenizerMetadata, 'chatTemplate' | 'tokenizerConfigJson'> | undefined) {
    if (tokenizer?.chatTemplate === undefined) {
      throw new CflowError('UNSUPPORTED', 'the file has no chat template', {
        remedy: CONTINUE,
      });
    }
    if (tokenizer.chatTemplate.length > MAX_TEMPLATE) throw overLimit(`${MAX_TEMPLATE} characters`);
    this.source = tokenizer.chatTemplate;
    this.#special = specialTokens(tokenizer.tokenizerConfigJson);
  }

  /**
   * Whether the template can be used at all; rendering checks it too.
   * @throws CflowError UNSUPPORTED with the construct that cannot be parsed or evaluated
   */
  async check(): Promise<void> {
    this.#text(await this.#render(undefined, {}));
  }

  /**
   * The text of a conversation, to be continued by the model.
   * @throws CflowError as `check`; USAGE where the template refuses the messages, e.g. roles that do not alternate;
   *   LIMIT_EXCEEDED where it takes too long or too much memory, or renders too much
   */
  async render(messages: readonly ChatMessage[], variables: TemplateVariables = {}): Promise<string> {
    return this.#text(await this.#render(messages, variables));
  }

  #render(messages: readonly ChatMessage[] | undefined, variables: TemplateVariables): Promise<RenderReply> {
    const given = Object.fromEntries(Object.entries(variables).filter(([, value]) => value !== undefined));
    return renderApart({
      template: this.source,
      messages,
      variables: { ...this.#special, tools: null, documents: null, add_generation_prompt: true, ...given },
      maxCharacters: MAX_CHARACTERS,
    });
  }

  #text(reply: RenderReply): string {
    if ('text' in reply) return reply.text;
    if ('excess' in reply) throw overLimit(`${MAX_CHARACTERS} characters of text: ${reply.excess}`);
    if ('unusable' in reply) {
      throw new CflowError('UNSUPPORTED', `the chat template cannot be used: ${reply.unusable}`, {
        remedy: CONTINUE,
      });
    }
    if ('refusal' in reply)
      throw new CflowError('USAGE', `the chat template refuses the messages: ${reply.refusal}`);
    throw new CflowError('USAGE', `the chat template fails on the messages: ${reply.failure}`);
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
