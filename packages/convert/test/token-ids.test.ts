import { MAX_VOCAB } from '@cflow/format';
import { expect, it } from 'vitest';
import { readTokenizer } from '../src/sources/tokenizer.js';

const read = (vocab: string) =>
  readTokenizer({ tokenizerJson: Buffer.from(`{"model":{"vocab":${vocab}}}`) }, (name) => name);

it.each([
  ['{"a":0,"b":1e300}', 'a token has the id 1e+300'],
  ['{"a":0,"b":1.5}', 'a token has the id 1.5'],
  [`{"a":${MAX_VOCAB}}`, `a token has the id ${MAX_VOCAB}`],
  ['{"a":-1}', 'no vocabulary'],
])('%s is no vocabulary', (vocab, problem) => {
  expect(() => read(vocab)).toThrowError(
    expect.objectContaining({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining(`tokenizer.json: model.vocab: ${problem}`),
    }),
  );
});

it('ids end where the format ends', () => {
  expect(read(`{"a":0,"b":${MAX_VOCAB - 1}}`)?.vocabSize).toBe(MAX_VOCAB);
});
