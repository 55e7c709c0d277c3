/** What a checkpoint says about text that is not taken as it stands, or that our libraries cannot run. */
import { expect, it } from 'vitest';
import { readGeneration } from '../src/sources/generation.js';
import { readTokenizer } from '../src/sources/tokenizer.js';
import { tokenizerNotes } from '../src/sources/tokenizer-check.js';

const JSON_TEXT = {
  added_tokens: [],
  normalizer: null,
  pre_tokenizer: null,
  post_processor: null,
  decoder: null,
  model: { type: 'BPE', vocab: { a: 0 }, merges: [] },
};
const bytes = (value: unknown) => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value));

function read(files: { tokenizer?: object; config?: object; jinja?: string; processor?: object }) {
  const notes: string[] = [];
  const tokenizer = readTokenizer(
    {
      tokenizerJson: bytes({ ...JSON_TEXT, ...files.tokenizer }),
      ...(files.config && { tokenizerConfigJson: bytes(files.config) }),
      ...(files.jinja !== undefined && { chatTemplate: bytes(files.jinja) }),
      ...(files.processor && { chatTemplateJson: bytes(files.processor) }),
    },
    (name) => name,
    (note) => notes.push(note),
  );
  return { tokenizer: tokenizer!, notes };
}

it.each([
  ['an unknown pre-tokenizer', { pre_tokenizer: { type: 'UnicodeScripts' } }, 'UnicodeScripts'],
  ['an unknown normalizer', { normalizer: { type: 'Nmt' } }, 'Nmt'],
  [
    'a regular expression that JavaScript lacks',
    {
      pre_tokenizer: {
        type: 'Split',
        pattern: { Regex: 'a(?<=b(?R))' },
        behavior: 'Isolated',
        invert: false,
      },
    },
    'tokenizer.json cannot be used',
  ],
])('%s is said', async (_, tokenizer, words) => {
  const notes = await tokenizerNotes(read({ tokenizer }).tokenizer);
  expect(notes).toEqual([expect.stringContaining(words)]);
});

it('a template with a construct that is not known is said, one that works is not', async () => {
  expect(await tokenizerNotes(read({ jinja: '{% trans %}a{% endtrans %}' }).tokenizer)).toEqual([
    expect.stringContaining('trans'),
  ]);
  expect(await tokenizerNotes(read({ jinja: '{{ messages[0].content }}' }).tokenizer)).toEqual([]);
});

it.each<[string, object, string]>([
  [
    'mixed merges',
    { tokenizer: { model: { type: 'BPE', vocab: { a: 0, b: 1 }, merges: ['a b', ['a', 'b']] } } },
    'tokenizer.json cannot be used: merges are not all pairs or all strings',
  ],
  [
    'a post-processor without its fields',
    {
      tokenizer: {
        model: { type: 'BPE', vocab: { a: 0 }, merges: [] },
        post_processor: { type: 'TemplateProcessing' },
      },
    },
    'tokenizer.json cannot be used: its fields are not those of a tokenizer',
  ],
  [
    'a template that ends early',
    { jinja: '{% if x %}' },
    'the chat template cannot be used: it is not a valid template',
  ],
])('%s: said in words, not in those of JavaScript', async (_name, files, words) => {
  const [note, ...rest] = await tokenizerNotes(read(files).tokenizer);
  expect([note, rest]).toEqual([expect.stringContaining(words), []]);
});

it('the template of a processor is taken where there is no other', () => {
  const processor = { chat_template: 'p' };
  expect(read({ processor }).tokenizer.chatTemplate).toBe('p');
  expect(read({ processor, config: { chat_template: 'c' } }).tokenizer.chatTemplate).toBe('c');
  expect(read({ processor, config: { chat_template: 'c' }, jinja: 'j' }).tokenizer.chatTemplate).toBe('j');
});

it('of named templates the default is taken, and none is guessed', () => {
  const named = (...names: string[]) => ({
    chat_template: names.map((name) => ({ name, template: `t-${name}` })),
  });
  expect(read({ config: named('tool_use', 'default') }).tokenizer.chatTemplate).toBe('t-default');
  const { tokenizer, notes } = read({ config: named('tool_use', 'rag') });
  expect(tokenizer.chatTemplate).toBeUndefined();
  expect(notes).toEqual(['no chat template was taken: none of "tool_use", "rag" is called "default"']);
});

it.each([
  [42, '42'],
  [{ a: 1 }, '{"a":1}'],
  [[{ name: 'default' }], '[{"name":"default"}]'],
])('the chat template %j is none, and that is said', (chat_template, shown) => {
  const { tokenizer, notes } = read({ config: { chat_template } });
  expect(tokenizer.chatTemplate).toBeUndefined();
  expect(notes).toEqual([
    `no chat template was taken: chat_template is ${shown}, a text or a list of named ones is expected`,
  ]);
});

it('what changes the tokens and no sampler takes is said, unless it is neutral', () => {
  const notes: string[] = [];
  const note = (text: string) => void notes.push(text);
  const neutral = { no_repeat_ngram_size: 0, suppress_tokens: [], forced_eos_token_id: null, num_beams: 1 };
  readGeneration({ ...neutral, renormalize_logits: false, max_length: 20, pad_token_id: 0 }, note);
  expect(notes).toEqual([]);
  readGeneration(
    { no_repeat_ngram_size: 3, suppress_tokens: [5], forced_eos_token_id: 2, num_beams: 4 },
    note,
  );
  expect(notes).toEqual(
    ['no_repeat_ngram_size 3', 'suppress_tokens [5]', 'forced_eos_token_id 2', 'num_beams 4'].map(
      (field) => `generation_config.json: ${field} is ignored`,
    ),
  );
});

it('generation_config.json gives the defaults of sampling; what no sampler takes is said', () => {
  const notes: string[] = [];
  const note = (text: string) => void notes.push(text);
  const json = {
    temperature: 0.6,
    top_p: 0.9,
    top_k: 50,
    do_sample: true,
    repetition_penalty: 1.1,
    min_p: null,
  };
  expect(readGeneration(json, note)).toEqual({
    temperature: 0.6,
    topP: 0.9,
    topK: 50,
    repetitionPenalty: 1.1,
  });
  expect(readGeneration({ do_sample: false, temperature: 0.6 }, note)).toEqual({ temperature: 0 });
  expect([readGeneration(undefined, note), notes]).toEqual([undefined, []]);
  expect(readGeneration({ temperature: 'warm' }, note)).toBeUndefined();
  expect(notes).toEqual(['generation_config.json: temperature "warm" is ignored']);
});
