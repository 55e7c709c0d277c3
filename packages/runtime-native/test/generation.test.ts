/** The chain of a generation: processors, sampler, stop conditions, text. The engine says what a test wants said. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Metadata, ModelConfig } from '@cflow/format';
import { captured } from '@cflow/test-kit/captured';
import { describe, expect, it, onTestFinished } from 'vitest';
import { main } from '../src/cli.js';
import { type GenerateOptions, Session } from '../src/session.js';
import { StopStrings } from '../src/text/stop.js';
import { TextTokenizer } from '../src/text/tokenizer.js';
import { goldenFile } from './model-file.js';
import { stubEngine } from './stub-engine.js';

/** a to f are 0 to 5, 6 has no token, 7 is <e>. */
const JSON_TEXT = JSON.stringify({
  added_tokens: [{ id: 7, content: '<e>', special: true }],
  normalizer: null,
  pre_tokenizer: null,
  post_processor: null,
  decoder: { type: 'Fuse' },
  model: {
    type: 'BPE',
    vocab: { a: 0, b: 1, c: 2, d: 3, e: 4, f: 5, '<e>': 7 },
    merges: [],
  },
});

/** A session whose engine answers with these logits, the last ones again and again. */
function sessionOf(
  rows: readonly (readonly number[])[],
  { eos = [], settings = {}, defaults = {} }: { eos?: number[]; settings?: object; defaults?: object } = {},
): Session {
  const metadata = { tokenizerJson: JSON_TEXT, tokenizerConfigJson: JSON.stringify(settings), vocabSize: 8 };
  const config = { contextLength: 64, vocabSize: 8, eosTokenIds: eos } as unknown as ModelConfig;
  let step = 0;
  return new Session({
    config,
    defaults,
    tokenizer: new TextTokenizer(metadata),
    engine: stubEngine({
      run: async () => Float32Array.from(rows[Math.min(step++, rows.length - 1)]!),
      stats: () => ({ weightBytes: 0, cacheBytes: 0 }),
    }),
  });
}

async function generated(session: Session, options: GenerateOptions) {
  const tokens = [];
  for await (const token of session.generate({ ids: [0], temperature: 0, maxTokens: 6, ...options }))
    tokens.push(token);
  const [ids, text] = [tokens.map(({ id }) => id), tokens.map((each) => each.text).join('')];
  return { ids, text, finish: tokens.at(-1)!.finish, tokens };
}

/** Says these ids, one after the other. */
const says = (ids: readonly number[]) =>
  ids.map((id) => Array.from({ length: 8 }, (_, each) => (each === id ? 9 : 0)));

describe('stop conditions', () => {
  it('end at the ids of the configuration and of tokenizer_config.json', async () => {
    const settings = { eos_token: { content: '<e>' } };
    const byTokenizer = await generated(sessionOf(says([1, 7, 2]), { eos: [5], settings }), {});
    expect(byTokenizer).toMatchObject({ ids: [1, 7], text: 'b', finish: 'eos' });
    const byConfig = await generated(sessionOf(says([1, 5, 2]), { eos: [5], settings }), {});
    expect(byConfig).toMatchObject({ ids: [1, 5], finish: 'eos' });
    const ignored = await generated(sessionOf(says([1, 7, 2]), { settings }), { ignoreEos: true });
    expect(ignored).toMatchObject({ text: 'bccccc'.slice(0, 5), finish: 'length' });
  });

  it('end before a string that spans tokens, and hold back what may become one', async () => {
    const { text, finish, tokens } = await generated(sessionOf(says([1, 2, 3, 4])), { stop: ['cd', 'xyz'] });
    expect([text, finish]).toEqual(['b', 'stop']);
    expect(tokens.map((each) => each.text)).toEqual(['b', '', '']);
    const other = await generated(sessionOf(says([1, 2, 4, 4])), { stop: ['cd'], maxTokens: 3 });
    expect([other.text, other.finish]).toEqual(['bce', 'length']);
  });

  it('the first of several strings counts; nothing is lost without one', () => {
    const strings = new StopStrings(['bcd', 'c']);
    expect([strings.push('ab'), strings.push('cd')]).toEqual([
      { text: 'a', found: false },
      { text: '', found: true },
    ]);
    const held = new StopStrings(['abab']);
    expect(held.push('xaba').text + held.push('bx').text + held.flush()).toBe('x');
    const none = new StopStrings(['abc']);
    expect(none.push('xab').text + none.push('d').text + none.flush()).toBe('xabd');
  });
});

describe('processors', () => {
  const row = [5, 4, 3, 2, 1, 0, 9, 0];

  it('never generate an id that has no token', async () => {
    expect((await generated(sessionOf([row]), { maxTokens: 1 })).ids).toEqual([0]);
    const session = sessionOf([row]);
    const { ids } = await generated(session, { maxTokens: 60, temperature: 50, topK: 0, topP: 1, seed: 1 });
    expect(ids).not.toContain(6);
  });

  it('penalize and prefer ids', async () => {
    const ids = async (options: GenerateOptions) =>
      (await generated(sessionOf([row]), { maxTokens: 3, ...options })).ids;
    expect(await ids({ presencePenalty: 1.5 })).toEqual([0, 1, 0]);
    expect(await ids({ frequencyPenalty: 1.5 })).toEqual([0, 1, 0]);
    expect(await ids({ frequencyPenalty: 2.5, maxTokens: 4 })).toEqual([0, 1, 2, 0]);
    // The prompt holds 0 already: 5 / 2 is less than 4, then 4 / 2 less than 3.
    expect(await ids({ repetitionPenalty: 2 })).toEqual([1, 2, 0]);
    expect(await ids({ logitBias: { 5: 100 } })).toEqual([5, 5, 5]);
    expect(await ids({ processors: [(logits) => logits.fill(50, 3, 4)] })).toEqual([3, 3, 3]);
    await expect(ids({ logitBias: { 8: 1 } })).rejects.toThrow(/8 is not a token id below 8/);
  });

  it('leave the logits of the engine alone, of which log-probabilities are reported', async () => {
    const { tokens } = await generated(sessionOf([row]), {
      logitBias: { 5: 100 },
      maxTokens: 1,
      logprobs: 2,
    });
    const normalizer = Math.log(row.reduce((sum, logit) => sum + Math.exp(logit), 0));
    const [{ logprobs }] = tokens as [(typeof tokens)[0]];
    expect(logprobs!.logprob).toBeCloseTo(0 - normalizer, 6);
    expect(logprobs!.top.map(({ id }) => id)).toEqual([6, 0]);
    expect(logprobs!.top[1]!.logprob).toBeCloseTo(5 - normalizer, 6);
  });
});

it('what the options do not say is as the model says', async () => {
  const row = [5, 4.9, 0, 0, 0, 0, 0, 0];
  const session = () => sessionOf([row], { defaults: { temperature: 0, repetitionPenalty: 2 } });
  expect((await generated(session(), { temperature: undefined, maxTokens: 1 })).ids).toEqual([1]);
  expect((await generated(session(), { repetitionPenalty: 1, maxTokens: 1 })).ids).toEqual([0]);
});

describe('cflow-run', () => {
  it('takes a prompt of 200 kB from a file, and refuses other encodings by name', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'cflow-prompt-'));
    onTestFinished(() => rm(directory, { recursive: true }));
    const tokenizer: Metadata['tokenizer'] = { tokenizerJson: JSON_TEXT, vocabSize: 8 };
    const file = join(directory, 'model.cflow');
    await writeFile(file, (await goldenFile('arch4', { tokenizer })).bytes);
    const prompt = join(directory, 'prompt.txt');
    const run = () => captured(main, [file, '--prompt-file', prompt, '--max-tokens', '1', '--json']);
    await writeFile(prompt, 'ab');
    expect(JSON.parse((await run()).out).promptIds).toEqual([0, 1]);
    await writeFile(prompt, 'a'.repeat(200_000));
    expect((await run()).err).toMatch(/200000 tokens do not fit the context|do not fit the context/);
    await writeFile(prompt, Buffer.from('\ufeffab', 'utf16le'));
    expect(await run()).toMatchObject({
      code: 3,
      err: expect.stringContaining('the text is UTF-16, little endian'),
    });
  });
});
