/** Conversations: turns through a model. */
import { CflowError } from '@cflow/format';
import { DEFAULT_MAX_TOKENS } from '../defaults.js';
import type { Model } from '../model.js';
import { PrefixCache } from '../serving/prefix-cache.js';
import type { GeneratedToken, GenerateOptions, SessionStats } from '../session.js';
import { type AnswerFormat, answerFormat } from './answer/formats.js';
import { assistantMessage, withParsedArguments } from './answer/message.js';
import type { AnswerPart } from './answer/parts.js';
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

/** What a user says: a text, parts of one, or nothing, after messages of tools that `add` took. */
export type UserContent = ChatMessage['content'] | undefined;

/** One token of an answer, and the parts of the answer that it makes certain. */
export interface ChatToken extends GeneratedToken {
  readonly parts: readonly AnswerPart[];
}

/** A conversation as ids, and the end of its text, which may have begun the answer. */
interface Prompt {
  readonly ids: readonly number[];
  readonly end: string;
}

/** Characters of a prompt's end that are looked at. */
const PROMPT_END = 64;

/** A part of the context that is kept free for an answer, where nothing is said about its length. */
const ANSWER_SHARE = 1 / 4;

/** One conversation. A turn passes what is new of it through the model; `close` frees what is kept between turns. */
export class Chat {
  readonly #model: Model;
  readonly #template: ChatTemplate;
  #options: ChatOptions;
  readonly #control: ControlTokens;
  readonly #format: AnswerFormat;
  #messages: ChatMessage[];
  /** The session of the last turn. */
  readonly #prefixes = new PrefixCache(Number.POSITIVE_INFINITY);
  #stats: SessionStats | undefined;

  /** @throws CflowError UNSUPPORTED or USAGE if the file has no template, or no tokenizer that can be used */
  constructor(model: Model, options: ChatOptions = {}) {
    this.#model = model;
    this.#template = new ChatTemplate(model.metadata?.tokenizer);
    this.#control = model.requireTokenizer().controlTokens(this.#template.source);
    this.#format = answerFormat(this.#template.source);
    this.#options = options;
    this.#messages = [];
    this.reset();
  }

  /** How the model marks reasoning and calls of tools: by its template. */
  get format(): AnswerFormat {
    return this.#format;
  }

  /** Begins again, with the message of the system. */
  reset(messages: readonly ChatMessage[] = []): void {
    const { system } = this.#options;
    this.#messages = [
      ...(system === undefined || messages.some(({ role }) => role === 'system')
        ? []
        : [{ role: 'system', content: system }]),
      ...messages,
    ];
  }

  /** Sets the message of the system, from the next turn on; undefined = none. */
  setSystem(system: string | undefined): void {
    this.#options = { ...this.#options, system };
    this.reset(this.#messages.filter(({ role }) => role !== 'system'));
  }

  /** Sets variables of the template, such as `enable_thinking`; the others stay. */
  setVariables(variables: TemplateVariables): void {
    this.#options = { ...this.#options, variables: { ...this.#options.variables, ...variables } };
  }

  /** Adds messages, such as those of tools, which `reply` answers. */
  add(...messages: readonly ChatMessage[]): void {
    this.#messages.push(...messages);
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
  async prompt(text: UserContent): Promise<number[]> {
    return [...(await this.#prompt(text)).ids];
  }

  #prompt(text: UserContent): Promise<Prompt> {
    return this.#encode([...this.#messages, ...said(text)]);
  }

  /**
   * The model's answer, token by token, with reasoning and calls of tools apart. The exchange is kept once the answer is
   * complete, or was interrupted by the signal after it began. When the context is full, the oldest turns are forgotten.
   * @throws CflowError as ChatTemplate.render and Session.generate; LIMIT_EXCEEDED for a message that does not fit alone
   */
  async *reply(
    text: UserContent,
    options: Omit<GenerateOptions, 'ids'> = {},
  ): AsyncGenerator<ChatToken, void, void> {
    const { ids, end } = await this.#fitting(text, options.maxTokens);
    const prefix = await this.#prefixes.take(ids);
    const session = prefix?.session ?? this.#model.createSession();
    const rest = ids.slice(prefix?.reused ?? 0);
    const room = this.#model.config.contextLength - ids.length + 1;
    const maxTokens = options.maxTokens && Math.min(options.maxTokens, room);
    const parser = this.#format.parser({
      prompt: end,
      tools: Boolean(this.#options.variables?.tools?.length),
    });
    const answer: AnswerPart[] = [];
    const keep = () => this.#messages.push(...said(text), assistantMessage(answer));
    try {
      for await (const token of session.generate({ ...options, maxTokens, ids: rest })) {
        const parts = parser.push(token.text + this.#marker(token));
        if (token.finish) parts.push(...parser.flush());
        answer.push(...parts);
        yield { ...token, parts };
      }
      this.#stats = session.stats();
    } catch (error) {
      answer.push(...parser.flush());
      if (answer.length > 0 && isInterruption(error)) keep();
      throw error;
    } finally {
      await this.close();
      await this.#prefixes.keep(session).catch(() => session.close());
    }
    keep();
  }

  /** A special token that is a marker; text has none. */
  #marker({ id, finish }: GeneratedToken): string {
    const special = finish === 'eos' ? undefined : this.#model.requireTokenizer().specialToken(id);
    return special !== undefined && this.#format.markers.has(special) ? special : '';
  }

  /** Frees what is kept for the next turn, which passes the whole conversation then. */
  close(): Promise<void> {
    return this.#prefixes.close();
  }

  async #encode(messages: readonly ChatMessage[]): Promise<Prompt> {
    const marked = this.#control.mark(messages.map(withParsedArguments));
    const rendered = await this.#template.render(marked.messages, this.#options.variables);
    const tokenizer = this.#model.requireTokenizer();
    const ids = marked.found
      ? tokenizer.encodeAliased(this.#control.alias(rendered), this.#control)
      : tokenizer.encode(rendered, { specialTokens: false });
    return { ids, end: rendered.slice(-PROMPT_END) };
  }

  /** Ids of the conversation without the oldest turns, as far as it must go to leave room for an answer. */
  async #fitting(text: UserContent, maxTokens = DEFAULT_MAX_TOKENS): Promise<Prompt> {
    const { contextLength } = this.#model.config;
    const most = contextLength + 1 - Math.min(maxTokens, Math.ceil(contextLength * ANSWER_SHARE));
    const dropped: ChatMessage[] = [];
    let prompt = await this.#prompt(text);
    while (prompt.ids.length > most) {
      const first = this.#messages.findIndex(({ role }) => role !== 'system');
      if (first < 0) break;
      // A turn: the message of the user with all that follows it up to the next.
      const next = this.#messages.findIndex(({ role }, i) => i > first && role === 'user');
      if (text === undefined && next < 0) break;
      dropped.push(...this.#messages.splice(first, (next < 0 ? this.#messages.length : next) - first));
      prompt = await this.#prompt(text);
    }
    if (dropped.length > 0) this.#options.onDropped?.(dropped.length);
    const { ids } = prompt;
    if (ids.length <= contextLength) return prompt;
    throw new CflowError('LIMIT_EXCEEDED', `the message has ${ids.length} tokens`, {
      value: ids.length,
      limit: contextLength,
      remedy: 'shorten it: it does not fit the context even alone',
    });
  }
}

/** The message of a user. */
const said = (text: UserContent): ChatMessage[] =>
  text === undefined ? [] : [{ role: 'user', content: text }];

const isInterruption = (error: unknown) => error instanceof CflowError && error.code === 'INTERRUPTED';
