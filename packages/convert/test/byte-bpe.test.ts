/** A made-up byte-level vocabulary: what becomes of vocab.json and merges.txt. */
import { TextTokenizer } from '@cflow/runtime-native';
import { directory, TINY_CONFIG } from '@cflow/test-kit/checkpoint';
import { describe, expect, it } from 'vitest';
import { openCheckpoint } from '../src/sources/checkpoint.js';

/** Bytes as byte-level BPE writes them: a space is Ġ, a line feed Ċ. */
const TOKENS = ['a', 'b', 'c', 'Ġ', 'Ċ', '1', '2', 'Ã', '©', "'", 's', 'ab', 'Ġab', 'abc', '12', "'s"];
const VOCAB = Object.fromEntries([...TOKENS, '<|endoftext|>'].map((token, id) => [token, id]));
const MERGES = "#version: 0.2\na b\nĠ ab\nab c\n1 2\n' s\n";
const id = (token: string) => VOCAB[token]!;

async function tokenizer(settings?: object, merges = MERGES) {
  const dir = await directory({
    'config.json': TINY_CONFIG,
    'vocab.json': VOCAB,
    'merges.txt': merges,
    ...(settings && { 'tokenizer_config.json': settings }),
  });
  const source = await openCheckpoint(dir, { dryRun: true });
  expect(source.files.map(({ name }) => name)).toContain('merges.txt');
  return source.tokenizer!;
}

describe('vocab.json and merges.txt', () => {
  it('cut and merge as GPT-2 does', async () => {
    const made = await tokenizer();
    expect(made.vocabSize).toBe(17);
    const text = new TextTokenizer(made);
    expect(text.encode('abc ab')).toEqual([id('abc'), id('Ġab')]);
    expect(text.encode("ab's 12")).toEqual([id('ab'), id("'s"), id('Ġ'), id('12')]);
    expect(text.encode('é<|endoftext|>a')).toEqual([id('Ã'), id('©'), id('<|endoftext|>'), id('a')]);
    expect(text.decode(text.encode('abc ab\né'))).toBe('abc ab\né');
  });

  it('cut as Qwen does: digits one by one, é composed', async () => {
    const added = { 16: { content: '<|endoftext|>', special: true } };
    const text = new TextTokenizer(
      await tokenizer({ tokenizer_class: 'Qwen2Tokenizer', added_tokens_decoder: added }),
    );
    expect(text.encode('12')).toEqual([id('1'), id('2')]);
    expect(text.encode('abc ab')).toEqual([id('abc'), id('Ġab')]);
    expect(text.encode('ab<|endoftext|>')).toEqual([id('ab'), 16]);
  });

  it('are refused for classes whose cut is not known, and for merges that are no pairs', async () => {
    await expect(tokenizer({ tokenizer_class: 'CodeGenTokenizer' })).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringContaining('vocab.json of a CodeGenTokenizer without a tokenizer.json'),
    });
    await expect(tokenizer(undefined, '#version\na b c\n')).rejects.toThrow(
      'merges.txt: line 2: "a b c" is not a pair of tokens',
    );
  });
});
