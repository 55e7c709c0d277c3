/** A vocabulary for models without a tokenizer: llama.cpp's callers count on there being one. */
import type { ModelConfig } from '@cflow/format';
import { EOS_IDS_KEY } from './keys.js';
import type { GgufEntry } from './schema.js';
import { TOKEN_TYPES } from './tokenizer-common.js';

/** Says that the tokens mean nothing, so that no tokenizer is made of them when the file is read. */
export const PLACEHOLDER_KEY = 'cflow.tokenizer';
/** Value of `PLACEHOLDER_KEY` in files whose tokens are made up. */
export const PLACEHOLDER = 'placeholder';

/** Made-up words, of which BOS and EOS are control tokens; loads at any size, as sentencepiece's kind would not. */
export function placeholderTokenizer({ vocabSize, bosTokenId, eosTokenIds }: ModelConfig): GgufEntry[] {
  const last = vocabSize - 1;
  const bos = bosTokenId ?? Math.min(1, last);
  const [eos = Math.min(2, last), eot, eom] = eosTokenIds;
  const control = new Set([bos, eos, ...eosTokenIds]);
  const id = (key: string, value: number | undefined): GgufEntry[] =>
    value === undefined ? [] : [[`tokenizer.ggml.${key}_token_id`, 'u32', value]];
  const ids = Array.from({ length: vocabSize }, (_, id) => id);
  const types = ids.map((own) => (control.has(own) ? TOKEN_TYPES.control : TOKEN_TYPES.normal));
  return [
    [PLACEHOLDER_KEY, 'string', PLACEHOLDER],
    ['tokenizer.ggml.model', 'string', 'gpt2'],
    ['tokenizer.ggml.pre', 'string', 'gpt-2'],
    ['tokenizer.ggml.tokens', 'array', ids.map((id) => `token${id}`), 'string'],
    ['tokenizer.ggml.token_type', 'array', types, 'i32'],
    ['tokenizer.ggml.merges', 'array', [], 'string'],
    ...id('bos', bos),
    ...id('eos', eos),
    ...id('eot', eot),
    ...id('eom', eom),
    // None, too: the one above may be made up.
    [EOS_IDS_KEY, 'array', eosTokenIds, 'u32'],
    ['tokenizer.ggml.add_bos_token', 'bool', false],
  ];
}
