/** How texts are cut under each tokenizer.ggml.pre, against the tokenizers library of Python. */
import { readFileSync } from 'node:fs';
import { parseModelConfig } from '@cflow/format';
import { Tokenizer } from '@huggingface/tokenizers';
import { describe, expect, it } from 'vitest';
import { PRE_TOKENIZERS } from '../src/gguf/tokenizer-common.js';
import { exportTokenizer } from '../src/gguf/tokenizer-export.js';
import { importTokenizer } from '../src/gguf/tokenizer-import.js';
import { MODELS } from './gguf-fixture.js';

interface Golden {
  texts: string[];
  /** Names of the same pre-tokenizer. */
  same: Record<string, string[]>;
  /** Pieces of each text, byte-level. */
  cuts: Record<string, string[][]>;
}
const { texts, same, cuts } = JSON.parse(
  readFileSync(new URL('golden/pre-tokenizers.json', import.meta.url), 'utf8'),
) as Golden;

const imported = (pre?: string) =>
  importTokenizer(
    new Map([
      ['tokenizer.ggml.model', 'gpt2'],
      ...(pre === undefined ? [] : [['tokenizer.ggml.pre', pre] as const]),
      ['tokenizer.ggml.tokens', ['a']],
      ['tokenizer.ggml.merges', []],
    ] as [string, string | string[]][]),
    'model.gguf',
  );

function piecesOf(pre: string | undefined, text: string): string[] {
  const { tokenizer } = imported(pre);
  return new Tokenizer(JSON.parse(tokenizer!.tokenizerJson), {}).pre_tokenizer!.pre_tokenize(text);
}

describe.each(Object.entries(cuts))('%s', (pre, expected) => {
  it.each([pre, ...(same[pre] ?? [])])('%s', (name) => {
    expect(texts.map((text) => piecesOf(name, text))).toEqual(expected);
  });
});

it.each(PRE_TOKENIZERS.map(({ pre }) => pre))('%s is written as it was read', (pre) => {
  const { entries } = exportTokenizer(imported(pre).tokenizer, parseModelConfig(MODELS.llama));
  const written = entries.find(([key]) => key === 'tokenizer.ggml.pre')?.[2];
  // The same cuts: llama.cpp has two names.
  expect(written).toBe(pre === 'olmo' ? 'gpt-2' : pre);
});

it('holds every pre-tokenizer that is read', () => {
  expect(PRE_TOKENIZERS.map(({ pre }) => pre).sort()).toEqual(Object.keys(cuts).sort());
});

it('a file without tokenizer.ggml.pre has that of llama.cpp, and a note', () => {
  expect(texts.map((text) => piecesOf(undefined, text))).toEqual(cuts.default);
  expect(imported().notes).toEqual([expect.stringContaining('tokenizer.ggml.pre is missing')]);
});
