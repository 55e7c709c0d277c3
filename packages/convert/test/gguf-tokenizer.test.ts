import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { openModel, parseModelConfig } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { TextTokenizer } from '@cflow/runtime-native';
import { parseGguf } from '@cflow/test-kit/gguf';
import { describe, expect, it } from 'vitest';
import type { GgufValue } from '../src/gguf/schema.js';
import { exportTokenizer } from '../src/gguf/tokenizer-export.js';
import { importTokenizer } from '../src/gguf/tokenizer-import.js';
import { convert } from '../src/index.js';
import { MODELS, makeCflow } from './gguf-fixture.js';

const added = (id: number, content: string) => ({
  ...{ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true },
});
const startsWith = (token: string, id: number) => ({
  type: 'TemplateProcessing',
  single: [{ SpecialToken: { id: token, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
  pair: [],
  special_tokens: { [token]: { id: token, ids: [id], tokens: [token] } },
});
const BYTES = Object.fromEntries(
  Array.from({ length: 128 }, (_, b) => [`<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`, 3 + b]),
);

/** As sentencepiece-like tokenizers are written: spaces are ▁, unknown characters bytes. */
const SENTENCE_PIECE = {
  version: '1.0',
  added_tokens: [added(0, '<unk>'), added(1, '<s>'), added(2, '</s>')],
  normalizer: {
    type: 'Sequence',
    normalizers: [
      { type: 'Prepend', prepend: '▁' },
      { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
    ],
  },
  pre_tokenizer: null,
  post_processor: startsWith('<s>', 1),
  decoder: {
    type: 'Sequence',
    decoders: [
      { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
      { type: 'ByteFallback' },
      { type: 'Fuse' },
      { type: 'Strip', content: ' ', start: 1, stop: 0 },
    ],
  },
  model: {
    type: 'BPE',
    unk_token: '<unk>',
    fuse_unk: true,
    byte_fallback: true,
    vocab: {
      '<unk>': 0,
      '<s>': 1,
      '</s>': 2,
      ...BYTES,
      '▁': 131,
      a: 132,
      b: 133,
      ab: 134,
      '▁a': 135,
      bab: 136,
    },
    merges: ['a b', '▁ a', 'b ab'],
  },
};

/** As GPT-2's kind is written: bytes as characters, Ġ for a space. */
const BYTE_LEVEL = {
  version: '1.0',
  added_tokens: [added(7, '<|end|>')],
  normalizer: null,
  pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
  post_processor: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true },
  decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
  model: {
    type: 'BPE',
    vocab: { a: 0, b: 1, Ġ: 2, ab: 3, Ġab: 4, ĠĠ: 5, '1': 6 },
    merges: [
      ['a', 'b'],
      ['Ġ', 'ab'],
      ['Ġ', 'Ġ'],
    ],
  },
};

const CONFIG = parseModelConfig(MODELS.llama);
const metadataOf = (json: object, more: object = {}) => ({
  tokenizerJson: JSON.stringify(json),
  vocabSize: 137,
  ...more,
});

function exported(json: object, more: object = {}): Record<string, unknown> {
  const { entries } = exportTokenizer(metadataOf(json, more), CONFIG);
  return Object.fromEntries(entries.map(([key, , value]) => [key, value]));
}

describe('export of tokenizers', () => {
  it('gives the tokens of sentencepiece scores in the order of the merges', () => {
    const out = exported(SENTENCE_PIECE);
    expect(out['tokenizer.ggml.model']).toBe('llama');
    const tokens = out['tokenizer.ggml.tokens'] as string[];
    const scores = out['tokenizer.ggml.scores'] as number[];
    const types = out['tokenizer.ggml.token_type'] as number[];
    expect(tokens).toHaveLength(200);
    const of = (token: string) => [scores[tokens.indexOf(token)], types[tokens.indexOf(token)]];
    // First merge best; what no merge makes is last; types: 1 normal, 2 unknown, 3 control, 5 unused, 6 byte.
    expect([of('ab'), of('▁a'), of('bab')]).toEqual([
      [-0, 1],
      [-1, 1],
      [-2, 1],
    ]);
    expect([of('a'), of('<unk>'), of('<s>'), of('<0x0A>')]).toEqual([
      [-3, 1],
      [-3, 2],
      [-3, 3],
      [-3, 6],
    ]);
    expect([tokens[199], types[199]]).toEqual(['[PAD199]', 5]);
    expect(out).toMatchObject({
      'tokenizer.ggml.add_space_prefix': true,
      'tokenizer.ggml.add_bos_token': true,
      'tokenizer.ggml.add_eos_token': false,
      'tokenizer.ggml.bos_token_id': 1,
      'tokenizer.ggml.eos_token_id': 2,
      'tokenizer.ggml.unknown_token_id': 0,
      'tokenizer.huggingface.json': JSON.stringify(SENTENCE_PIECE),
    });
  });

  it('says whether a space is put in front', () => {
    const metaspace = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'never', split: false };
    const gemma = { ...SENTENCE_PIECE, normalizer: SENTENCE_PIECE.normalizer.normalizers[1] };
    expect(exported(gemma)['tokenizer.ggml.add_space_prefix']).toBe(false);
    const never = { ...SENTENCE_PIECE, normalizer: null, pre_tokenizer: metaspace };
    expect(exported(never)['tokenizer.ggml.add_space_prefix']).toBe(false);
    const first = { ...never, pre_tokenizer: { ...metaspace, prepend_scheme: 'first' } };
    expect(exported(first)['tokenizer.ggml.add_space_prefix']).toBe(true);
  });

  const split = (Regex: string) => ({
    type: 'Sequence',
    pretokenizers: [
      { type: 'Split', pattern: { Regex }, behavior: 'Isolated', invert: false },
      { type: 'ByteLevel', add_prefix_space: false, use_regex: false },
    ],
  });
  const LLAMA3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const digits = {
    type: 'Sequence',
    pretokenizers: [{ type: 'Digits', individual_digits: true }, BYTE_LEVEL.pre_tokenizer],
  };

  it.each([
    ['gpt-2', BYTE_LEVEL.pre_tokenizer, false],
    ['llama-bpe', split(LLAMA3), true],
    ['dbrx', split(LLAMA3), false],
    ['qwen2', split(LLAMA3.replace('{1,3}', '')), false],
    ['smollm', digits, false],
  ])('recognises %s', (pre, pre_tokenizer, ignore_merges) => {
    const json = { ...BYTE_LEVEL, pre_tokenizer, model: { ...BYTE_LEVEL.model, ignore_merges } };
    expect(exported(json)).toMatchObject({
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.pre': pre,
      'tokenizer.ggml.merges': ['a b', 'Ġ ab', 'Ġ Ġ'],
    });
  });

  it.each([
    ['a cut that llama.cpp lacks', { ...BYTE_LEVEL, pre_tokenizer: split('[a-z]+') }, 'no pre-tokenizer'],
    ['unigrams', { ...BYTE_LEVEL, model: { type: 'Unigram', vocab: [['a', 0]] } }, 'no BPE'],
  ])('leaves out %s, says so, and writes a vocabulary that loads', (_, json, why) => {
    const { entries, notes } = exportTokenizer(metadataOf(json), CONFIG);
    expect(notes[0]).toContain(why);
    const out = new Map(entries.map(([key, , value]) => [key, value as GgufValue]));
    expect(out.get('tokenizer.ggml.tokens')).toHaveLength(200);
    expect(importTokenizer(out, 'model.gguf').tokenizer).toBeUndefined();
  });

  it('leaves out tokens that the embedding has no row for', () => {
    const small = { ...CONFIG, vocabSize: 134 };
    const { entries, notes } = exportTokenizer(metadataOf(SENTENCE_PIECE), small);
    expect(notes[0]).toContain('3 tokens beyond the 134 rows');
    expect(entries.find(([key]) => key === 'tokenizer.ggml.tokens')![2]).toHaveLength(134);
  });

  it('takes special tokens and the template from where they are', () => {
    const { bosTokenId: _, ...bare } = { ...CONFIG, eosTokenIds: [] };
    const settings = {
      tokenizerConfigJson: '{"eos_token":{"content":"<|end|>"},"pad_token":"<|end|>"}',
      chatTemplate: '{{x}}',
    };
    const { entries } = exportTokenizer(metadataOf(BYTE_LEVEL, settings), bare);
    const out = Object.fromEntries(entries.map(([key, , value]) => [key, value]));
    expect(out).toMatchObject({
      'tokenizer.ggml.eos_token_id': 7,
      'tokenizer.ggml.padding_token_id': 7,
      'tokenizer.ggml.add_bos_token': false,
      'tokenizer.chat_template': '{{x}}',
    });
    expect(out['tokenizer.ggml.bos_token_id']).toBeUndefined();
  });
});

describe('import of tokenizers', () => {
  const valuesOf = (json: object) => {
    const { 'tokenizer.huggingface.json': _, ...rest } = exported(json) as Record<string, GgufValue>;
    return new Map(Object.entries(rest));
  };

  it.each([
    ['sentencepiece', SENTENCE_PIECE, ['ab', 'a b  bab', 'babab!\n', '', '<s>ab']],
    ['byte level', BYTE_LEVEL, ['ab', ' ab  ab', 'a b11 ab<|end|>b']],
  ])('makes a tokenizer.json of tokens that tokenizes as the original: %s', (_, json, texts) => {
    const original = new TextTokenizer(metadataOf(json));
    const made = new TextTokenizer(importTokenizer(valuesOf(json), 'model.gguf').tokenizer!);
    for (const sample of texts) {
      expect(made.encode(sample)).toEqual(original.encode(sample));
      expect(made.decode(made.encode(sample))).toBe(original.decode(original.encode(sample)));
    }
  });

  it('refuses lists that do not belong together', () => {
    const values = valuesOf(SENTENCE_PIECE);
    values.set('tokenizer.ggml.scores', [1, 2]);
    expect(() => importTokenizer(values, 'model.gguf')).toThrowError('2 for 200 tokens');
    values.set('tokenizer.ggml.scores', ['a']);
    expect(() => importTokenizer(values, 'model.gguf')).toThrowError(
      expect.objectContaining({ code: 'CONFIG_INVALID' }),
    );
  });

  it('leaves out kinds that it does not know, with a note', () => {
    const { tokenizer, notes } = importTokenizer(new Map([['tokenizer.ggml.model', 't5']]), 'model.gguf');
    expect(tokenizer).toBeUndefined();
    expect(notes[0]).toContain('"t5"');
  });
});

it('the original tokenizer.json comes through a file unchanged', async () => {
  const cflow = await makeCflow(MODELS.llama!, 'f32', SENTENCE_PIECE);
  const [gguf, back] = ['a.gguf', 'b.cflow'].map((name) => join(dirname(cflow), name)) as [string, string];
  await convert({ source: cflow, output: gguf, threads: 1 });
  expect(parseGguf(await readFile(gguf)).metadata['tokenizer.ggml.model']).toBe('llama');
  await convert({ source: gguf, output: back, threads: 1 });
  const source = await openFileSource(back);
  const { metadata } = await openModel(source);
  await source.close();
  expect(metadata.tokenizer?.tokenizerJson).toBe(JSON.stringify(SENTENCE_PIECE));
  expect(metadata.tokenizer?.vocabSize).toBe(137);
});

it('all ids that end a text, tokenizer_config.json and the chat template come through a file', async () => {
  const settings = {
    bos_token: '<s>',
    eos_token: { content: '</s>' },
    chat_template: '{{ bos_token }}{{ eos_token }}',
  };
  const eosTokenIds = [130, 133, 132, 131];
  const cflow = await makeCflow({ ...MODELS.llama!, eosTokenIds }, 'f32', SENTENCE_PIECE, {
    'tokenizer_config.json': settings,
  });
  const [gguf, back] = ['a.gguf', 'b.cflow'].map((name) => join(dirname(cflow), name)) as [string, string];
  const { notes } = await convert({ source: cflow, output: gguf, threads: 1 });
  expect(notes).toContain('other programs read 3 of the 4 ids that end a text');
  const { metadata: keys } = parseGguf(await readFile(gguf));
  expect(['eos', 'eot', 'eom'].map((key) => keys[`tokenizer.ggml.${key}_token_id`])).toEqual([130, 133, 132]);
  await convert({ source: gguf, output: back, threads: 1 });
  const source = await openFileSource(back);
  const { config, metadata } = await openModel(source);
  await source.close();
  expect(config.eosTokenIds).toEqual(eosTokenIds);
  expect(JSON.parse(metadata.tokenizer!.tokenizerConfigJson!)).toEqual(settings);
  expect(metadata.tokenizer!.chatTemplate).toBe(settings.chat_template);
});

it.each([[[]], [[7]], [[6, 2, 4, 3, 5]]])('of a model without a tokenizer, too: %j', async (eosTokenIds) => {
  const cflow = await makeCflow({ ...MODELS.llama!, eosTokenIds }, 'f32');
  const [gguf, back] = ['a.gguf', 'b.cflow'].map((name) => join(dirname(cflow), name)) as [string, string];
  const { notes } = await convert({ source: cflow, output: gguf, threads: 1 });
  const said = notes.filter((note) => note.startsWith('other programs read'));
  expect(said).toEqual(eosTokenIds.length > 3 ? ['other programs read 3 of the 5 ids that end a text'] : []);
  await convert({ source: gguf, output: back, threads: 1 });
  const source = await openFileSource(back);
  const { config } = await openModel(source);
  await source.close();
  expect(config.eosTokenIds).toEqual(eosTokenIds);
});

describe('a GGUF of another program', () => {
  const read = (pre: string) =>
    importTokenizer(
      new Map<string, GgufValue>([
        ['tokenizer.ggml.model', 'gpt2'],
        ['tokenizer.ggml.pre', pre],
        ['tokenizer.ggml.tokens', ['a', 'b', 'ab', '<s>', '</s>']],
        ['tokenizer.ggml.merges', ['a b']],
        ['tokenizer.ggml.bos_token_id', 3],
        ['tokenizer.ggml.eos_token_id', 4],
      ]),
      'x.gguf',
    );

  it.each([
    'deepseek-r1-qwen',
    'smaug-bpe',
    'tekken',
    'gpt-4o',
    'llama3',
    'falcon',
    'deepseek-v3',
    'command-r',
  ])('has the pre-tokenizer %s, and names its special tokens', (pre) => {
    const { tokenizer, notes } = read(pre);
    expect(notes).toEqual([]);
    expect(new TextTokenizer(tokenizer!).encode('ab', { specialTokens: false })).toEqual([2]);
    expect(JSON.parse(tokenizer!.tokenizerConfigJson!)).toEqual({ bos_token: '<s>', eos_token: '</s>' });
  });

  it('has one that is not known: it is named', () => {
    expect(read('nonesuch')).toEqual({ notes: [expect.stringContaining('the pre-tokenizer "nonesuch"')] });
  });
});
