import { openModel, streamName } from '@cflow/format';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { Model } from '../src/model.js';
import { negativeLogLikelihood, perplexity, splitDocuments } from '../src/perplexity.js';
import type { GeneratedToken, GenerateOptions } from '../src/session.js';
import { Session } from '../src/session.js';
import { goldenJson, goldenPath, loadSafetensors, type Trace } from './helpers.js';
import { countingSource, goldenFile, modelBytes, tokenizerMetadata } from './model-file.js';
import { stubEngine } from './stub-engine.js';

const trace = goldenJson('arch2_4', 'trace.json') as Trace;

async function openGolden(...args: Parameters<typeof goldenFile>) {
  const { bytes } = await goldenFile(...args);
  const source = countingSource(bytes);
  return { model: await Model.open(source), source };
}

async function collect(session: Session, options: GenerateOptions): Promise<GeneratedToken[]> {
  const tokens: GeneratedToken[] = [];
  for await (const token of session.generate(options)) tokens.push(token);
  return tokens;
}

describe('a model from a file', () => {
  it.each(['cflow', 'vflow'] as const)('%s gives the logits of the trace', async (container) => {
    const { model } = await openGolden('arch2_4', { container });
    const session = model.createSession();
    await session.prefill(trace.tokens);
    const logits = session.logits();
    expect(logits.indexOf(Math.max(...logits))).toBe(trace.argmax.at(-1));
    const last = trace.logits[String(trace.tokens.length - 1)];
    for (const [id, value] of (last ?? []).entries()) expect(logits[id]).toBeCloseTo(value, 3);
  });

  it('reads only the experts that the routing chose', async () => {
    const { bytes, config } = await goldenFile('arch2_4');
    const source = countingSource(bytes);
    const { streams } = await openModel(source);
    const model = await Model.open(source);
    source.reads.length = 0;
    await model.createSession().prefill(trace.tokens.slice(0, 1));
    const wasRead = (name: string) => {
      const { offset, length } = streams.get(name)!;
      return source.reads.some((read) => read.offset < offset + length && offset < read.offset + read.length);
    };
    for (const layer of config.layers.keys()) {
      const read = [0, 1, 2, 3].filter((expert) => wasRead(streamName.expert(layer, expert)));
      expect(read).toEqual([...trace.routerIndices![0]![layer]!].sort());
    }
  });

  it('reads each stream once', async () => {
    const { model, source } = await openGolden('arch5');
    const session = model.createSession();
    await session.prefill([1, 2]);
    const before = source.reads.length;
    await session.prefill([1, 2]);
    expect(source.reads.length).toBe(before);
  });
});

describe('generate', () => {
  it('at temperature 0 gives the argmax of every step', async () => {
    const { model } = await openGolden('arch4');
    const expected: number[] = [];
    const stepwise = model.createSession();
    await stepwise.prefill([5, 6]);
    for (let i = 0; i < 6; i++) {
      const logits = stepwise.logits();
      expected.push(logits.indexOf(Math.max(...logits)));
      await stepwise.decode(expected.at(-1)!);
    }
    const tokens = await collect(model.createSession(), { ids: [5, 6], maxTokens: 6, temperature: 0 });
    expect(tokens.map(({ id }) => id)).toEqual(expected);
    expect(tokens.map(({ finish }) => finish)).toEqual([...Array(5), 'length']);
  });

  it('stops at an end-of-text token unless told not to', async () => {
    const free = await collect((await openGolden('arch4')).model.createSession(), {
      ids: [5],
      maxTokens: 4,
      temperature: 0,
    });
    const eos = free[1]!.id;
    const { model } = await openGolden('arch4', {}, { eosTokenIds: [eos] });
    const options = { ids: [5], maxTokens: 4, temperature: 0 };
    const stopped = await collect(model.createSession(), options);
    expect(stopped.at(-1)).toMatchObject({ id: eos, finish: 'eos' });
    expect(stopped.length).toBeLessThanOrEqual(2);
    expect(await collect(model.createSession(), { ...options, ignoreEos: true })).toHaveLength(4);
  });

  it('never generates rows beyond the tokenizer, and streams the text', async () => {
    const tokenizer = { ...tokenizerMetadata(), vocabSize: 9 };
    const { model } = await openGolden('arch4', { tokenizer });
    const session = model.createSession();
    expect(session.vocabLimit).toBe(9);
    const tokens = await collect(session, {
      ids: [5],
      maxTokens: 50,
      temperature: 100,
      topK: 0,
      topP: 1,
      seed: 1,
    });
    expect(Math.max(...tokens.map(({ id }) => id))).toBe(8);
    const ids = tokens.map(({ id }) => id);
    expect(tokens.map(({ text }) => text).join('')).toBe(model.tokenizer!.decode([5, ...ids]).slice(1));
  });

  it('fills the context exactly and refuses more', async () => {
    const { model } = await openGolden('arch5', {}, { contextLength: 8 });
    const all = await collect(model.createSession(), { ids: [1, 2, 3], temperature: 0 });
    expect(all).toHaveLength(6);
    expect(all.at(-1)!.finish).toBe('context');
    const tooMany = collect(model.createSession(), { ids: [1, 2, 3], maxTokens: 7 });
    await expect(tooMany).rejects.toMatchObject({ code: 'LIMIT_EXCEEDED' });
    const tooLong = model.createSession().prefill(Array(9).fill(1));
    await expect(tooLong).rejects.toMatchObject({ code: 'LIMIT_EXCEEDED' });
  });
});

describe('what follows a generation', () => {
  const greedy = { temperature: 0, ignoreEos: true };
  const unbroken = async (model: Model, maxTokens: number) =>
    (await collect(model.createSession(), { ...greedy, ids: [5, 6], maxTokens })).map(({ id }) => id);

  it.each([1, 4])('goes on after %i tokens as if it had not ended', async (first) => {
    const { model } = await openGolden('arch4');
    const session = model.createSession();
    const ids = await collect(session, { ...greedy, ids: [5, 6], maxTokens: first });
    ids.push(...(await collect(session, { ...greedy, maxTokens: 3 })));
    ids.push(...(await collect(session, { ...greedy, maxTokens: 2 })));
    expect(ids.map(({ id }) => id)).toEqual(await unbroken(model, first + 5));
    expect(session.position).toBe(2 + first + 5 - 1);
  });

  it('goes on after a loop that was left', async () => {
    const { model } = await openGolden('arch4');
    const session = model.createSession();
    const ids: number[] = [];
    for await (const { id } of session.generate({ ...greedy, ids: [5, 6] })) {
      ids.push(id);
      if (ids.length === 3) break;
    }
    ids.push(...(await collect(session, { ...greedy, maxTokens: 4 })).map(({ id }) => id));
    expect(ids).toEqual(await unbroken(model, 7));
  });

  it.each(['prefill', 'decode', 'generate'] as const)('%s comes after the last token', async (method) => {
    const { model } = await openGolden('arch4');
    const session = model.createSession();
    const generated = await collect(session, { ...greedy, ids: [5, 6], maxTokens: 2 });
    const next = {
      prefill: () => session.prefill([9]),
      decode: () => session.decode(9),
      generate: () => session.generate({ ...greedy, ids: [9] }).next(),
    };
    await next[method]();
    const whole = model.createSession();
    await whole.prefill([5, 6, ...generated.map(({ id }) => id), 9]);
    expect(session.position).toBe(5);
    expect(session.logits()).toEqual(whole.logits());
  });

  it('has text that joins on', async () => {
    const { model } = await openGolden('arch4', { tokenizer: tokenizerMetadata() });
    const options = { ids: [5], temperature: 100, topK: 0, topP: 1, seed: 3 };
    const session = model.createSession();
    const first = await collect(session, { ...options, maxTokens: 4 });
    const second = await collect(session, { ...options, ids: undefined, maxTokens: 4 });
    const all = [5, ...[...first, ...second].map(({ id }) => id)];
    const text = [...first, ...second].map((token) => token.text).join('');
    expect(model.tokenizer!.decode(all)).toBe(model.tokenizer!.decode([5]) + text);
  });

  it('counts the token that has not passed', async () => {
    const { model } = await openGolden('arch5', {}, { contextLength: 8 });
    const session = model.createSession();
    await collect(session, { ...greedy, ids: [1, 2, 3], maxTokens: 2 });
    await expect(session.prefill([1, 2, 3, 4])).rejects.toMatchObject({ code: 'LIMIT_EXCEEDED' });
    await expect(collect(session, { maxTokens: 5 })).rejects.toMatchObject({
      code: 'LIMIT_EXCEEDED',
      details: { remedy: 'at most 4 fit after 5 tokens' },
    });
    expect((await collect(session, greedy)).map(({ finish }) => finish)).toEqual([...Array(3), 'context']);
    await expect(collect(session, greedy)).rejects.toMatchObject({ code: 'LIMIT_EXCEEDED' });
  });
});

describe('stats', () => {
  it('count tokens, and time them one by one', async () => {
    // 1 ms for the prompt, then tokens of 1 to 100 ms: the median is the 50th of them, p99 the 99th.
    let now = 0;
    const clock = vi.spyOn(performance, 'now').mockImplementation(() => now);
    const waits = [1, ...Array.from({ length: 100 }, (_, i) => ((i * 37) % 100) + 1)];
    const { config } = await goldenFile('arch5', {}, { contextLength: 200 });
    const engine = stubEngine({
      run: async () => {
        now += waits.shift()!;
        return new Float32Array(config.vocabSize);
      },
      stats: () => ({ weightBytes: 1, cacheBytes: 2 }),
    });
    const session = new Session({ config, engine });
    expect(session.stats()).toMatchObject({
      tokensPerSecond: 0,
      firstTokenMs: 0,
      tokenMsP50: 0,
      tokenMsP99: 0,
    });
    await session.prefill([1, 2, 3]);
    for (let i = 0; i < 100; i++) await session.decode(1);
    clock.mockRestore();
    expect(session.stats()).toMatchObject({
      weightBytes: 1,
      cacheBytes: 2,
      promptTokens: 3,
      prefillMs: 1,
      firstTokenMs: 1,
      decodeMs: 5050,
      tokensPerSecond: 100_000 / 5050,
      tokenMsP50: 50,
      tokenMsP99: 99,
    });
  });
});

describe('misuse', () => {
  it.each([[[-1]], [[97]], [[1.5]], [[]]])('ids %j are refused, and the session lives on', async (ids) => {
    const session = (await openGolden('arch5')).model.createSession();
    await expect(session.prefill(ids)).rejects.toMatchObject({ code: 'USAGE' });
    await session.prefill([1]);
    expect(session.position).toBe(1);
  });

  it('two generations at once on one session', async () => {
    const session = (await openGolden('arch5')).model.createSession();
    const first = session.generate({ ids: [1], maxTokens: 3 });
    await first.next();
    await expect(session.generate({ ids: [1] }).next()).rejects.toMatchObject({ code: 'USAGE' });
    await expect(session.decode(1)).rejects.toMatchObject({ code: 'USAGE' });
    await first.return();
    await session.decode(1);
  });

  it('use after close', async () => {
    const { model } = await openGolden('arch5');
    const session = model.createSession();
    await session.prefill([1]);
    await model.close();
    await model.close();
    expect(() => session.logits()).toThrowError(/closed/);
    await expect(session.decode(1)).rejects.toMatchObject({ code: 'USAGE' });
    expect(() => model.createSession()).toThrowError(/closed/);
  });

  it('logits before the first token, generation from nothing', async () => {
    const session = (await openGolden('arch5')).model.createSession();
    expect(() => session.logits()).toThrowError(/prefill/);
    await expect(session.generate().next()).rejects.toMatchObject({ code: 'USAGE' });
  });

  it('NaN in a weight ends in a typed error', async () => {
    const tensors = loadSafetensors(goldenPath('arch5', 'model.safetensors'));
    tensors.get('norm.weight')!.values[0] = Number.NaN;
    const { config } = await goldenFile('arch5');
    const session = (await Model.open(countingSource(await modelBytes(config, tensors)))).createSession();
    const next = session.generate({ ids: [1] }).next();
    await expect(next).rejects.toMatchObject({ code: 'NONFINITE_WEIGHT' });
  });

  it('a damaged weight is noticed when its stream is read', async () => {
    const { bytes } = await goldenFile('arch5');
    const { streams } = await openModel(countingSource(bytes));
    bytes[streams.get('layers.1.dense')!.offset + 1000]! ^= 1;
    const session = (await Model.open(countingSource(bytes))).createSession();
    await expect(session.generate({ ids: [1] }).next()).rejects.toMatchObject({
      code: 'VERIFY_FAILED',
      details: { field: 'layers.1.dense' },
    });
  });

  it('an abort ends the generation with INTERRUPTED', async () => {
    const session = (await openGolden('arch5')).model.createSession();
    const abort = new AbortController();
    const generation = session.generate({ ids: [1], maxTokens: 20, signal: abort.signal });
    await generation.next();
    abort.abort();
    await expect(generation.next()).rejects.toMatchObject({ code: 'INTERRUPTED', exitCode: 130 });
  });

  it('a read error fails the session for good', async () => {
    const { bytes } = await goldenFile('arch5');
    const source = countingSource(bytes);
    const model = await Model.open(source);
    const session = model.createSession();
    source.read = () => Promise.reject(new Error('disk gone'));
    await expect(session.prefill([1])).rejects.toThrowError('disk gone');
    await expect(session.prefill([1])).rejects.toMatchObject({ code: 'USAGE' });
  });

  it('the event loop turns while tokens run', async () => {
    const { model } = await openGolden('arch2_4');
    // Each look at the clock is a second later: every phase takes longer than a turn may.
    let seconds = 0;
    const clock = vi.spyOn(performance, 'now').mockImplementation(() => 1000 * seconds++);
    onTestFinished(() => clock.mockRestore());
    let [turns, running] = [0, true];
    const turn = () => {
      turns++;
      if (running) setImmediate(turn);
    };
    setImmediate(turn);
    await model.createSession().prefill(trace.tokens);
    running = false;
    expect(turns).toBeGreaterThanOrEqual(trace.tokens.length);
  });
});

describe('perplexity', () => {
  it('is the mean of −ln p', () => {
    // Probabilities 1/4 and 3/4.
    expect(negativeLogLikelihood(Float32Array.of(0, Math.log(3)), 0)).toBeCloseTo(Math.log(4), 6);
    expect(negativeLogLikelihood(Float32Array.of(1000, 0), 1)).toBe(1000);
  });

  it('refuses a token that the model has no logit for', () => {
    expect(() => negativeLogLikelihood(Float32Array.of(1, 2), 2)).toThrowError(/token id 2/);
  });

  it('splits, strips and drops empty texts', () => {
    expect(splitDocuments(' a \n<|endoftext|>\n\n<|endoftext|>\nb\nc\n<|endoftext|>\n')).toEqual([
      'a',
      'b\nc',
    ]);
  });

  it('scores each text from an empty context, over all predicted tokens', async () => {
    const { tokenizerJson, vocabSize } = tokenizerMetadata([]);
    const plain = JSON.stringify({ ...JSON.parse(tokenizerJson), normalizer: null });
    const { model } = await openGolden('arch5', { tokenizer: { tokenizerJson: plain, vocabSize } });
    const short = 'AB';
    const ids = [...model.tokenizer!.encode(short)];
    const session = model.createSession();
    let sum = 0;
    for (const [i, id] of ids.slice(0, -1).entries()) {
      await session.decode(id);
      const p = session.logits().map(Math.exp);
      sum -= Math.log(p[ids[i + 1]!]! / p.reduce((a, b) => a + b));
    }
    const text = `${short}\n<|endoftext|>\n${short}\n<|endoftext|>\n`;
    const result = await perplexity(model, text);
    expect(result).toMatchObject({ documents: 2, predictedTokens: 2 * (ids.length - 1) });
    expect(result.nats).toBeCloseTo(sum / (ids.length - 1), 5);
    expect(result.perplexity).toBeCloseTo(Math.exp(result.nats), 10);
    expect(await perplexity(model, text, { documents: 1, tokens: 2 })).toMatchObject({
      documents: 1,
      predictedTokens: 1,
    });
  });
});
