/** A vocabulary for models without a tokenizer: llama.cpp's callers count on there being one. */
import type { ModelConfig } from '@cflow/format';
import type { GgufEntry } from './schema.js';
import { TOKEN_TYPES } from './tokenizer-common.js';

/** Says that the tokens mean nothing, so that no tokenizer is made of them when the file is read. */
export const PLACEHOLDER_KEY = 'cflow.tokenizer';
export const PLACEHOLDER = 'placeholder';
const SPECIAL = ['<unk>', '<s>', '</s>'];

/** The smallest vocabulary that loads: three special tokens, the bytes, and made-up words. */
export function placeholderTokenizer({ vocabSize, bosTokenId, eosTokenIds }: ModelConfig): GgufEntry[] {
  const bytes = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`);
  const known = [...SPECIAL, ...bytes];
  const tokens = Array.from({ length: vocabSize }, (_, i) => known[i] ?? `token${i}`);
  const typeOf = (i: number) => {
    if (i === 0) return TOKEN_TYPES.unknown;
    if (i < SPECIAL.length) return TOKEN_TYPES.control;
    return i < known.length ? TOKEN_TYPES.byte : TOKEN_TYPES.normal;
  };
  const last = vocabSize - 1;
  return [
    [PLACEHOLDER_KEY, 'string', PLACEHOLDER],
    ['tokenizer.ggml.model', 'string', 'llama'],
    ['tokenizer.ggml.tokens', 'array', tokens, 'string'],
    ['tokenizer.ggml.scores', 'array', tokens.map((_, i) => -i), 'f32'],
    ['tokenizer.ggml.token_type', 'array', tokens.map((_, i) => typeOf(i)), 'i32'],
    ['tokenizer.ggml.unknown_token_id', 'u32', 0],
    ['tokenizer.ggml.bos_token_id', 'u32', bosTokenId ?? Math.min(1, last)],
    ['tokenizer.ggml.eos_token_id', 'u32', eosTokenIds[0] ?? Math.min(2, last)],
  ];
}
