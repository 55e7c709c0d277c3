import { CflowError, type Metadata } from '@cflow/format';
import { check, idList, text as textCheck } from '@cflow/format/node';
import { Tokenizer } from '@huggingface/tokenizers';
import { aliasOf, ControlTokens } from '../chat/control-tokens.js';
import { type Detokenizer, TextStream } from './detokenizer.js';
import { type TokenBytes, tokenBytes } from './token-bytes.js';

type TokenizerMetadata = NonNullable<Metadata['tokenizer']>;

/** How a text becomes ids. */
export interface EncodeOptions {
  /** Whether to add what the post-processor adds; default true. The text of a chat template stands for itself. */
  readonly specialTokens?: boolean | undefined;
}

/** Text to ids and back, by the tokenizer.json that a file carries. */
export class TextTokenizer implements Detokenizer {
  /** Entries of the vocabulary. */
  readonly vocabSize: number;
  /** Ids that tokenizer_config.json ends a text with. */
  readonly endIds: readonly number[];
  readonly #tokenizer: Tokenizer;
  /** The id that the post-processor puts in front of every text. */
  readonly #bos: number | undefined;
  readonly #json: object;
  #aliased: { readonly control: ControlTokens; readonly tokenizer: Tokenizer } | undefined;
  readonly #special: ReadonlySet<string>;
  readonly #bytes: TokenBytes;
  #gaps: { readonly limit: number; readonly ids: readonly number[] } | undefined;
  #context: { readonly id: number; readonly text: string } | undefined;

  /** @throws CflowError CONFIG_INVALID if the documents do not parse, UNSUPPORTED if the library cannot build them */
  constructor(metadata: TokenizerMetadata) {
    this.vocabSize = metadata.vocabSize;
    const json = parse(metadata.tokenizerJson, 'tokenizer.json');
    const config = parse(metadata.tokenizerConfigJson ?? '{}', 'tokenizer_config.json');
    this.#json = json;
    try {
      this.#tokenizer = new Tokenizer(json, config);
      this.#bos = this.#tokenizer.encode('').ids[0];
    } catch (cause) {
      throw new CflowError('UNSUPPORTED', `tokenizer.json cannot be used: ${reasonOf(cause, json)}`, {
        remedy: 'the model takes token ids (--ids)',
        cause,
      });
    }
    const added = [...this.#tokenizer.get_added_tokens_decoder().values()];
    this.#special = new Set([
      ...added.filter(({ special }) => special).map(({ content }) => content),
      ...((config as { additional_special_tokens?: string[] }).additional_special_tokens ?? []),
    ]);
    const contents = new Set(added.map(({ content }) => content));
    this.#bytes = tokenBytes((json as { decoder?: unknown }).decoder, (token) => contents.has(token));
    this.endIds = endIdsOf(config, (token) => this.#tokenizer.token_to_id(token));
  }

  /**
   * Ids of a text, with the special tokens that the tokenizer's post-processor adds; a BOS spelled out is not doubled.
   * Special tokens in the text become their ids.
   * @throws CflowError USAGE if it is no text
   */
  encode(text: string, { specialTokens = true }: EncodeOptions = {}): number[] {
    check('text', text, textCheck);
    const { ids } = this.#tokenizer.encode(text, { add_special_tokens: specialTokens });
    if (!specialTokens) return ids;
    return this.#bos !== undefined && ids[0] === this.#bos && ids[1] === this.#bos ? ids.slice(1) : ids;
  }

  /**
   * Tokens that a text of a user must not become: the special ones, and those added ones that the chat template writes.
   * Other added tokens are mere words.
   */
  controlTokens(template: string): ControlTokens {
    const added = [...this.#tokenizer.get_added_tokens_decoder().values()];
    const written = ({ content }: { content: string }) =>
      content.trim().length > 1 && template.includes(content);
    return new ControlTokens(added.filter((token) => token.special || written(token)));
  }

  /** Ids of a text in which control tokens are aliases, as of `control.alias`; spelled out they are plain text. */
  encodeAliased(text: string, control: ControlTokens): number[] {
    if (this.#aliased?.control !== control) {
      this.#aliased = { control, tokenizer: aliasedTokenizer(this.#json, this.#tokenizer, control) };
    }
    return this.#aliased.tokenizer.encode(text, { add_special_tokens: false }).ids;
  }

  /** Text of ids, without special tokens; ids that the vocabulary lacks give nothing. @throws CflowError USAGE if they are no array */
  decode(ids: readonly number[]): string {
    check('ids', ids, idList);
    const known = Array.from(ids).filter((id) => this.hasToken(id));
    if (known.length === 0) return '';
    // Spaces are left as the tokens have them: a clean-up across tokens would change text already streamed.
    return this.#tokenizer.decode(known, { skip_special_tokens: true, clean_up_tokenization_spaces: false });
  }

  /** Whether an id stands for a token: vocabularies have gaps. */
  hasToken(id: number): boolean {
    return this.#tokenizer.id_to_token(id) !== undefined;
  }

  /** Ids below `limit` that no token has. */
  gaps(limit: number): readonly number[] {
    if (this.#gaps?.limit !== limit) {
      const ids = Array.from({ length: limit }, (_, id) => id).filter((id) => !this.hasToken(id));
      this.#gaps = { limit, ids };
    }
    return this.#gaps.ids;
  }

  bytesOf(id: number): readonly number[] | 'none' | undefined {
    const token = this.#tokenizer.id_to_token(id);
    return token === undefined || this.#special.has(token) ? 'none' : this.#bytes(token);
  }

  /** The special token of an id, which its text lacks; undefined for any other. */
  specialToken(id: number): string | undefined {
    const token = this.#tokenizer.id_to_token(id);
    return token !== undefined && this.#special.has(token) ? token : undefined;
  }

  /** The bytes that a token adds inside a text; undefined for one that adds none, as a special token. */
  textBytesOf(id: number): Uint8Array | undefined {
    const bytes = this.bytesOf(id);
    if (bytes === 'none') return undefined;
    if (bytes) return Uint8Array.from(bytes);
    const context = this.#someText();
    return Buffer.from(this.decode([context.id, id]).slice(context.text.length));
  }

  /** A token that gives others the context of a text that has begun. */
  #someText(): { readonly id: number; readonly text: string } {
    for (let id = 0; !this.#context && id < this.vocabSize; id++) {
      if (this.bytesOf(id) === undefined && /^[A-Za-z]+$/.test(this.decode([id])))
        this.#context = { id, text: this.decode([id]) };
    }
    this.#context ??= { id: -1, text: '' };
    return this.#context;
  }

  /** Text piece by piece, as it would continue after `prompt`. */
  stream(prompt: readonly number[] = []): TextStream {
    return new TextStream(this, prompt);
  }
}

/** The same tokenizer, whose control tokens are spelled as their aliases. The vocabulary is shared. */
function aliasedTokenizer(json: object, tokenizer: Tokenizer, control: ControlTokens): Tokenizer {
  const { added_tokens: added = [] } = json as { added_tokens?: { content: string }[] };
  const model = { ...(json as { model: object }).model, vocab: {}, merges: [] };
  const aliases = added.map((token) =>
    control.has(token.content) ? { ...token, content: aliasOf(token.content) } : token,
  );
  const aliased = new Tokenizer({ ...json, added_tokens: aliases, model }, {});
  (aliased as { model: unknown }).model = tokenizer.model;
  return aliased;
}

/** Ids of `eos_token`: a text, an object with one, or a list of either. */
function endIdsOf(config: object, idOf: (token: string) => number | undefined): number[] {
  const { eos_token: named } = config as { eos_token?: unknown };
  return [named].flat().flatMap((token) => {
    const content =
      typeof token === 'object' && token !== null ? (token as { content?: unknown }).content : token;
    const id = typeof content === 'string' ? idOf(content) : undefined;
    return id === undefined ? [] : [id];
  });
}

/** Why the library fails; what JavaScript says of fields that are not as expected helps nobody. */
function reasonOf(cause: unknown, json: object): string {
  if (!(cause instanceof TypeError)) return (cause as Error).message;
  const { merges } = (json as { model?: { merges?: unknown } | null }).model ?? {};
  const uniform =
    Array.isArray(merges) &&
    (merges.every((merge) => typeof merge === 'string') || merges.every((merge) => Array.isArray(merge)));
  if (merges !== undefined && !uniform) return 'merges are not all pairs or all strings';
  return 'its fields are not those of a tokenizer';
}

function parse(text: string, file: string): object {
  try {
    return JSON.parse(text) as object;
  } catch (cause) {
    throw new CflowError('CONFIG_INVALID', `not JSON: ${(cause as Error).message}`, { file, cause });
  }
}
