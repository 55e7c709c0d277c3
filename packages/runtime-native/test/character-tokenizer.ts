/** A tokenizer whose tokens are printable characters, for models of 97 tokens. */

/** Three special tokens, then "!" to "~" as 3 to 96; BOS in front of every text. */
export const CHARACTERS = {
  added_tokens: ['<unk>', '<s>', '</s>'].map((content, id) => ({ id, content, special: true })),
  normalizer: null,
  pre_tokenizer: null,
  post_processor: {
    type: 'TemplateProcessing',
    single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
    pair: [],
    special_tokens: { '<s>': { id: '<s>', ids: [1], tokens: ['<s>'] } },
  },
  decoder: { type: 'Fuse' },
  model: {
    type: 'BPE',
    unk_token: '<unk>',
    vocab: Object.fromEntries([
      ...['<unk>', '<s>', '</s>'].map((token, id) => [token, id]),
      ...Array.from({ length: 94 }, (_, i) => [String.fromCharCode(33 + i), 3 + i]),
    ]),
    merges: [],
  },
};
/** Id of one of them. */
export const character = (c: string) => c.charCodeAt(0) - 30;
