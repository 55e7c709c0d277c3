/** Sessions that go back: whatever was cut off, what follows is that of a session which never had it. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { OpenModelOptions } from '../src/model.js';
import type { Session } from '../src/session.js';
import { goldenFile, tokenizerMetadata } from './model-file.js';
import { bytesOpener, freshLogits } from './opened.js';
import { MODELS, WAYS } from './sequence-models.js';
import { LONG, SLOWLY, slowModel } from './slow-model.js';

const { opened, directory } = bytesOpener();

/** The pieces of the first `length` ids; a piece of several that would leave one is dropped: one alone has other bits. */
function cut(pieces: readonly number[][], length: number): number[][] {
  const kept: number[][] = [];
  let left = length;
  for (const piece of pieces) {
    const part = piece.slice(0, left);
    if (part.length > 1 || part.length === piece.length) kept.push(part);
    if (part.length < piece.length) break;
    left -= part.length;
  }
  return kept.filter((piece) => piece.length > 0);
}

const append = fc.array(fc.nat(90), { minLength: 1, maxLength: 20 }).map((ids) => ({ ids }));
const back = fc.double({ min: 0, max: 1, noNaN: true }).map((share) => ({ share }));

describe.each(Object.keys(MODELS))('%s', (name) => {
  it.each(Object.keys(WAYS))('%s gives the bits of a sequence that never went there', async (way) => {
    const model = await opened(await MODELS[name]!(WAYS[way]!), WAYS[way]!);
    const steps = fc.array(fc.oneof({ weight: 2, arbitrary: append }, back), { maxLength: 8 });
    await fc.assert(
      fc.asyncProperty(steps, async (commands) => {
        await using session = model.createSession();
        let pieces: number[][] = [];
        for (const command of commands) {
          const length = pieces.flat().length;
          if ('ids' in command) {
            const ids = command.ids.slice(0, model.config.contextLength - length);
            if (ids.length === 0) continue;
            await session.prefill(ids);
            pieces.push(ids);
            expect(session.logits()).toEqual(await freshLogits(model, pieces));
          } else {
            const kept = cut(pieces, Math.floor(command.share * length));
            const reached = await session.truncate(kept.flat().length);
            expect([0, kept.flat().length]).toContain(reached);
            pieces = reached ? kept : [];
          }
          expect(session.ids).toEqual(pieces.flat());
        }
      }),
      { numRuns: way === 'reference' ? 5 : 10, seed: 1 },
    );
  });
});

describe('a ring', () => {
  const ids = Array.from({ length: 400 }, (_, i) => (7 * i + 3) % 130);

  it.each(['reference', 'native f32'])('of the %s engine goes back as far as it holds', async (way) => {
    const model = await opened(await MODELS.windows!({}), WAYS[way]!);
    for (const length of [100, 200, 400]) {
      for (const position of [length - 1, length - 20, length - 60, length - 99]) {
        await using session = model.createSession();
        await session.prefill(ids.slice(0, length));
        const reached = await session.truncate(position);
        expect(reached).toBe(session.position);
        await session.prefill(ids.slice(reached, length));
        expect(session.logits()).toEqual(await freshLogits(model, [ids.slice(0, length)]));
      }
    }
  });

  it('of two pages gives nothing but the whole, or what its pages still hold', async () => {
    const model = await opened(await MODELS.windows!({}), WAYS['native f32']!);
    await using session = model.createSession();
    await session.prefill(ids);
    // Positions 272 to 399 are there; a window of 16 at position p begins at p - 15.
    expect(await session.truncate(287)).toBe(287);
    expect(await session.truncate(286)).toBe(0);
  });
});

describe('pages on disk', () => {
  it('go back to a page that is in memory, or to the beginning of one that is not', async () => {
    const bytes = await MODELS.llama!({});
    const model = await opened(bytes, { engine: 'native', cache: 'f32', maxBatch: 8 });
    const ids = Array.from({ length: 128 }, (_, i) => (7 * i + 3) % 130);
    const page = 64 * 2 * 2 * 24 * 4;
    const small = await opened(bytes, {
      engine: 'native',
      cache: 'f32',
      maxBatch: 8,
      cacheMemory: 5.5 * page,
      spillDirectory: directory(),
    });
    await using session = small.createSession();
    await session.prefill(ids);
    expect(session.stats().native!.tiers.cacheWritten).toBeGreaterThan(0);
    for (const [position, reached] of [
      [100, 100],
      [70, 70],
      [40, 0],
    ] as const) {
      expect(await session.truncate(position)).toBe(reached);
      await session.prefill(ids.slice(reached));
      expect(session.logits()).toEqual(await freshLogits(model, [ids]));
    }
  });
});

describe('a session', () => {
  const greedy = { temperature: 0, ignoreEos: true, maxTokens: 4 };
  const generate = async (session: Session, options = {}) => {
    const tokens = [];
    for await (const token of session.generate({ ...greedy, ...options })) tokens.push(token);
    return tokens;
  };
  const arch4 = async (options: OpenModelOptions = WAYS['native f32']!) =>
    opened((await goldenFile('arch4', { tokenizer: tokenizerMetadata() })).bytes, options);

  it('gives memory back', async () => {
    const session = (await arch4()).createSession();
    await session.prefill(Array(60).fill(1));
    expect(session.stats().cacheBytes).toBeGreaterThan(0);
    expect(await session.truncate(0)).toBe(0);
    expect(session.stats().cacheBytes).toBe(0);
  });

  it('takes back the token that has not passed alone, and goes on from the logits that it has', async () => {
    const session = (await arch4()).createSession();
    const first = await generate(session, { ids: [5, 6] });
    expect(session.ids).toEqual([5, 6, ...first.map(({ id }) => id)]);
    expect(await session.truncate(5)).toBe(5);
    const again = await generate(session, { maxTokens: 1 });
    expect(again[0]).toMatchObject({ id: first[3]!.id, text: first[3]!.text });
  });

  it('keeps the token that has not passed where nothing is cut off', async () => {
    const session = (await arch4()).createSession();
    const all = await generate((await arch4()).createSession(), { ids: [5, 6], maxTokens: 6 });
    await generate(session, { ids: [5, 6] });
    expect(await session.truncate(6)).toBe(6);
    const rest = await generate(session, { maxTokens: 2 });
    expect(rest.map(({ id }) => id)).toEqual(all.slice(4).map(({ id }) => id));
  });

  it('counts penalties over what is left', async () => {
    const model = await arch4();
    const penalized = { frequencyPenalty: 2, presencePenalty: 2 };
    const session = model.createSession();
    await generate(session, { ids: [5, 6], maxTokens: 8 });
    expect(await session.truncate(2)).toBe(2);
    await session.truncate(1);
    const tokens = await generate(session, { ...penalized, ids: [6] });
    const expected = await generate(model.createSession(), { ...penalized, ids: [5, 6] });
    expect(tokens.map(({ id }) => id)).toEqual(expected.map(({ id }) => id));
  });

  it('has no logits behind a cut', async () => {
    const session = (await arch4()).createSession();
    await session.prefill([5, 6]);
    await session.truncate(1);
    expect(() => session.logits()).toThrowError(/prefill/);
    await expect(session.generate().next()).rejects.toMatchObject({ code: 'USAGE' });
  });

  it.each([3, -1, 1.5])('refuses position %d of two', async (position) => {
    const session = (await arch4()).createSession();
    await session.prefill([5, 6]);
    await expect(session.truncate(position)).rejects.toMatchObject({ code: 'USAGE' });
    expect(session.position).toBe(2);
  });

  it('that was aborted is usable again', async () => {
    const model = await opened(await slowModel(), { ...SLOWLY, engine: 'native' });
    const session = model.createSession();
    await session.prefill([1, 2, 3]);
    const abort = new AbortController();
    const running = session.prefill(LONG, { signal: abort.signal });
    abort.abort();
    await expect(running).rejects.toMatchObject({ code: 'INTERRUPTED' });
    await expect(session.prefill([4])).rejects.toMatchObject({ details: { remedy: /truncate/ } });
    expect(await session.truncate(3)).toBe(3);
    await session.prefill([4, 5]);
    expect(session.logits()).toEqual(
      await freshLogits(model, [
        [1, 2, 3],
        [4, 5],
      ]),
    );
  });

  it('is refused while a call runs', async () => {
    const model = await opened(await slowModel(), { ...SLOWLY, engine: 'native' });
    const session = model.createSession();
    const running = session.prefill(LONG.slice(0, 50));
    await expect(session.truncate(0)).rejects.toMatchObject({ code: 'USAGE' });
    await running;
    const cut = session.truncate(10);
    await expect(session.prefill([1])).rejects.toMatchObject({ code: 'USAGE' });
    expect(await cut).toBe(10);
  });
});
