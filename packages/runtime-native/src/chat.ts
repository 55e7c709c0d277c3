/** Conversations: the chat template of a model's tokenizer, and turns through a model. */
import { fork } from 'node:child_process';
import { CflowError, type Metadata } from '@cflow/format';
import { Template } from '@huggingface/jinja';
import type { RenderReply, RenderTask } from './chat-process.js';
import type { Model } from './model.js';
import type { GeneratedToken, GenerateOptions, SessionStats } from './session.js';

type TokenizerMetadata = NonNullable<Metadata['tokenizer']>;

/** One message of a conversation. */
export interface ChatMessage {
  /** `system`, `user`, `assistant`, or whatever else the template knows. */
  readonly role: string;
  readonly content: string;
}

/** Special tokens that templates name, as tokenizer_config.json has them: a text, or an object with one. */
const SPECIAL = ['bos_token', 'eos_token', 'unk_token', 'pad_token'] as const;

/** What rendering a template may take, in milliseconds and MiB of heap, the start of its process included. */
const RENDER_MS = 5_000;
const RENDER_MIB = 256;
/** Characters of a rendered conversation. */
const MAX_CHARACTERS = 1 << 24;

/** The Jinja template of a tokenizer. */
export class ChatTemplate {
  readonly #template: string;
  readonly #special: Readonly<Record<string, string>>;

  /** @throws CflowError UNSUPPORTED without a template, or for one that does not parse */
  constructor(tokenizer: Pick<TokenizerMetadata, 'chatTemplate' | 'tokenizerConfigJson'> | undefined) {
    if (tokenizer?.chatTemplate === undefined) {
      throw new CflowError('UNSUPPORTED', 'the file has no chat template', { remedy: 'use --prompt alone' });
    }
    try {
      new Template(tokenizer.chatTemplate);
    } catch (cause) {
      throw new CflowError('UNSUPPORTED', `the chat template cannot be used: ${(cause as Error).message}`, {
        cause,
      });
    }
    this.#template = tokenizer.chatTemplate;
    this.#special = specialTokens(tokenizer.tokenizerConfigJson);
  }

  /**
   * The text of a conversation, to be continued by the model.
   * @throws CflowError USAGE where the template refuses the messages, e.g. roles that do not alternate;
   *   LIMIT_EXCEEDED where it takes too long or too much memory, or renders too much
   */
  async render(messages: readonly ChatMessage[]): Promise<string> {
    const variables = { ...this.#special, messages: [...messages], add_generation_prompt: true };
    const reply = await renderApart({ template: this.#template, variables, maxCharacters: MAX_CHARACTERS });
    if ('text' in reply) return reply.text;
    if ('excess' in reply) throw overLimit(`${MAX_CHARACTERS} characters of text: ${reply.excess}`);
    throw new CflowError('USAGE', `the chat template refuses the messages: ${reply.failure}`);
  }
}

function overLimit(limit: string): CflowError {
  return new CflowError('LIMIT_EXCEEDED', `the chat template takes more than ${limit}`, {
    remedy: 'use --prompt without --chat, or correct the template',
  });
}

/** One rendering in a process of its own, which ends with it, whatever the template does. */
async function renderApart(task: RenderTask): Promise<RenderReply> {
  // Tests run from src/, where the script exists only compiled.
  const file = new URL(import.meta.url.replace(/\/src\/chat\.ts$/, '/dist/chat.js'));
  const child = fork(new URL('./chat-process.js', file), {
    execArgv: [`--max-old-space-size=${RENDER_MIB}`],
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  });
  let timer: NodeJS.Timeout | undefined;
  try {
    return await new Promise<RenderReply>((resolve, reject) => {
      timer = setTimeout(() => reject(overLimit(`${RENDER_MS} ms`)), RENDER_MS);
      child.once('message', (reply) => resolve(reply as RenderReply));
      child.on('error', (cause) => reject(stopped(cause.message, cause)));
      child.once('exit', (code, signal) => reject(endedBy(code, signal)));
      child.send(task);
    });
  } finally {
    clearTimeout(timer);
    child.kill('SIGKILL');
  }
}

/** V8 aborts over memory: by a signal, or with a code over 128 where the system has none. */
function endedBy(code: number | null, signal: NodeJS.Signals | null): CflowError {
  return signal !== null || (code ?? 0) > 128
    ? overLimit(`${RENDER_MIB} MiB of memory`)
    : stopped(`exit code ${code}`);
}

function stopped(why: string, cause?: Error): CflowError {
  return new CflowError('INTERNAL', `the process of the chat template stopped: ${why}`, { cause });
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
  #stats: SessionStats | undefined;

  /** @throws CflowError UNSUPPORTED if the file has no tokenizer or no template that can be used */
  constructor(model: Model, system?: string) {
    this.#model = model;
    this.#template = new ChatTemplate(model.metadata?.tokenizer);
    this.#messages = system === undefined ? [] : [{ role: 'system', content: system }];
  }

  get messages(): readonly ChatMessage[] {
    return this.#messages;
  }

  /** Figures of the last turn; undefined before the first. */
  get stats(): SessionStats | undefined {
    return this.#stats;
  }

  /**
   * Ids of the conversation with `text` as the next message of the user.
   * @throws as ChatTemplate.render
   */
  async prompt(text: string): Promise<number[]> {
    const rendered = await this.#template.render([...this.#messages, { role: 'user', content: text }]);
    return this.#model.tokenizer!.encode(rendered, { specialTokens: false });
  }

  /**
   * The model's answer, token by token; the exchange is kept once the answer is complete.
   * @throws CflowError as ChatTemplate.render and Session.generate
   */
  async *reply(
    text: string,
    options: Omit<GenerateOptions, 'ids'> = {},
  ): AsyncGenerator<GeneratedToken, void, void> {
    const session = this.#model.createSession();
    let content = '';
    try {
      for await (const token of session.generate({ ...options, ids: await this.prompt(text) })) {
        content += token.text;
        yield token;
      }
      this.#stats = session.stats();
    } finally {
      await session.close();
    }
    this.#messages.push({ role: 'user', content: text }, { role: 'assistant', content });
  }
}
