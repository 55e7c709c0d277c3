import { CflowError, type Metadata } from '@cflow/format';
import { check, idList, text as textCheck } from '@cflow/format/node';
import { Tokenizer } from '@huggingface/tokenizers';

type TokenizerMetadata = NonNullable<Metadata['tokenizer']>;

/** What a decoder gives for bytes that are not (yet) a character. */
const REPLACEMENT = '\uFFFD';
/** A UTF-8 character has at most four bytes, so after four tokens the bytes are broken rather than incomplete. */
const LONGEST_CHARACTER = 4;

/** Text to ids and back, by the tokenizer.json that a file carries. */
export class TextTokenizer {
  /** Entries of the vocabulary. */
  readonly vocabSize: number;
  readonly #tokenizer: Tokenizer;
  /** The id that the post-processor puts in front of every text. */
  readonly #bos: number | undefined;

  /** @throws CflowError CONFIG_INVALID if the documents do not parse, UNSUPPORTED if the library cannot build them */
  constructor(metadata: TokenizerMetadata) {
    this.vocabSize = metadata.vocabSize;
    const json = parse(metadata.tokenizerJson, 'tokenizer.json');
    const config = parse(metadata.tokenizerConfigJson ?? '{}', 'tokenizer_config.json');
    try {
      this.#tokenizer = new Tokenizer(json, config);
      this.#bos = this.#tokenizer.encode('').ids[0];
    } catch (cause) {
      throw new CflowError('UNSUPPORTED', `tokenizer.json cannot be used: ${(cause as Error).message}`, {
        cause,
      });
    }
  }

  /**
   * Ids of a text, with the special tokens that the tokenizer's post-processor adds; a BOS spelled out is not doubled.
   * Without `specialTokens` the text stands for itself, as that of a chat template does.
   * @throws CflowError USAGE if it is no text
   */
  encode(text: string, { specialTokens = true }: { readonly specialTokens?: boolean } = {}): number[] {
    check('text', text, textCheck);
    const { ids } = this.#tokenizer.encode(text, { add_special_tokens: specialTokens });
    if (!specialTokens) return ids;
    return this.#bos !== undefined && ids[0] === this.#bos && ids[1] === this.#bos ? ids.slice(1) : ids;
  }

  /** Text of ids, without special tokens; ids that the vocabulary lacks give nothing. @throws CflowError USAGE if they are no array */
  decode(ids: readonly number[]): string {
    check('ids', ids, idList);
    const known = Array.from(ids).filter((id) => this.#tokenizer.id_to_token(id) !== undefined);
    if (known.length === 0) return '';
    // Spaces are left as the tokens have them: a clean-up across tokens would change text already streamed.
    return this.#tokenizer.decode(known, { skip_special_tokens: true, clean_up_tokenization_spaces: false });
  }

  /** Text piece by piece, as it would continue after `prompt`. */
  stream(prompt: readonly number[] = []): TextStream {
    return new TextStream(this, prompt);
  }
}

/** Turns ids into pieces of text that join to the text of all ids, and never splits a character. */
export class TextStream {
  readonly #tokenizer: TextTokenizer;
  /** Ids already shown that give the context of the next (a decoder may strip a leading space), then ids held back. */
  #window: number[];
  #shown: number;

  constructor(tokenizer: TextTokenizer, prompt: readonly number[]) {
    this.#tokenizer = tokenizer;
    this.#window = [...prompt];
    this.#shown = prompt.length;
  }

  /** The text that this id completes; empty while a character is incomplete. */
  push(id: number): string {
    this.#window.push(id);
    const held = this.#window.length - this.#shown;
    if (this.#pending().endsWith(REPLACEMENT) && held < LONGEST_CHARACTER) return '';
    return this.flush();
  }

  /** Whatever is held back, complete or not. */
  flush(): string {
    const text = this.#pending();
    const fresh = this.#window.slice(this.#shown);
    // Tokens without text cannot serve as context: the next would look like the first of a text.
    if (this.#tokenizer.decode(fresh)) this.#window = fresh;
    this.#shown = this.#window.length;
    return text;
  }

  #pending(): string {
    const before = this.#tokenizer.decode(this.#window.slice(0, this.#shown));
    return this.#tokenizer.decode(this.#window).slice(before.length);
  }
}

function parse(text: string, file: string): object {
  try {
    return JSON.parse(text) as object;
  } catch (cause) {
    throw new CflowError('CONFIG_INVALID', `not JSON: ${(cause as Error).message}`, { file, cause });
  }
}
