/** What tokenizer.json and tokenizer.ggml.* have in common. */

/** Token types of llama.cpp. */
export const TOKEN_TYPES = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

const CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const LETTERS = '[^\\r\\n\\p{L}\\p{N}]?\\p{L}+';
const REST = ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

/** How text is cut before merging. */
export interface PreTokenizer {
  /** tokenizer.ggml.pre; the first row that fits is written. */
  readonly pre: string;
  /** The regular expression of tokenizer.json; absent: that of GPT-2, which ByteLevel has built in. */
  readonly pattern?: string;
  /** Digits stand alone. */
  readonly digits?: boolean;
  /** A piece that is in the vocabulary is not merged up to: model.ignore_merges. */
  readonly ignoreMerges: boolean;
}

/** Those of llama.cpp that our families use. */
export const PRE_TOKENIZERS: readonly PreTokenizer[] = [
  { pre: 'llama-bpe', pattern: `${CONTRACTIONS}|${LETTERS}|\\p{N}{1,3}|${REST}`, ignoreMerges: true },
  { pre: 'dbrx', pattern: `${CONTRACTIONS}|${LETTERS}|\\p{N}{1,3}|${REST}`, ignoreMerges: false },
  { pre: 'qwen2', pattern: `${CONTRACTIONS}|${LETTERS}|\\p{N}|${REST}`, ignoreMerges: false },
  { pre: 'gpt-2', ignoreMerges: false },
  { pre: 'olmo', ignoreMerges: false },
  { pre: 'smollm', digits: true, ignoreMerges: false },
  { pre: 'default', ignoreMerges: false },
];

/** `<0x0A>` → 10; undefined for other tokens. */
export function byteOf(token: string): number | undefined {
  const digits = /^<0x([0-9A-F]{2})>$/.exec(token)?.[1];
  return digits === undefined ? undefined : Number.parseInt(digits, 16);
}

/** How sentencepiece writes a space. */
export const SPACE = '▁';
