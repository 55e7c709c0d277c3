/** Sessions that share a prefix: whatever the others do, each gives what a session alone gives. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { OpenModelOptions } from '../src/model.js';
import type { Session } from '../src/session.js';
import { goldenFile, tokenizerMetadata } from './model-file.js';
import { bytesOpener, freshLogits } from './opened.js';
import { MODELS, WAYS } from './sequence-models.js';
import { LONG, SLOWLY, slowModel } from './slow-model.js';

const { opened, directory } = bytesOpener();

/** Which of the sessions, and what it does. */
const which = fc.nat(1000);
const append = fc.record({
  which,
  ids: fc.array(fc.nat(90), { minLength: 1, maxLength: 12 }),
});
const forked = fc.record({ which, fork: fc.constant(true as const) });
const taken = fc.record({ which, back: fc.integer({ min: 1, max: 3 }) });
const closed = fc.record({ which, close: fc.constant(true as const) });

describe.each(Object.keys(MODELS))('%s', (name) => {
  it.each(Object.keys(WAYS))('%s gives each session its own sequence', async (way) => {
    const model = await opened(await MODELS[name]!(WAYS[way]!), WAYS[way]!);
    const steps = fc.array(fc.oneof({ weight: 3, arbitrary: append }, forked, taken, closed), {
      minLength: 4,
      maxLength: 16,
    });
    await fc.assert(
      fc.asyncProperty(steps, async (commands) => {
        let all: { session: Session; pieces: number[][] }[] = [
          { session: model.createSession(), pieces: [] },
        ];
        for (const command of commands) {
          const chosen = all[command.which % all.length]!;
          const { session, pieces } = chosen;
          if ('ids' in command) {
            const ids = command.ids.slice(0, model.config.contextLength - session.position);
            if (ids.length === 0) continue;
            await session.prefill(ids);
            chosen.pieces = [...pieces, ids];
          } else if ('fork' in command) {
            all.push({ session: session.fork(), pieces });
          } else if ('back' in command) {
            const kept = pieces.slice(0, Math.max(0, pieces.length - command.back));
            const reached = await session.truncate(kept.flat().length);
            chosen.pieces = reached ? kept : [];
          } else if (all.length > 1) {
            await session.close();
            all = all.filter((each) => each !== chosen);
          }
        }
        for (const { session, pieces } of all) {
          expect(session.ids).toEqual(pieces.flat());
          await session.prefill([3]).catch(() => undefined);
          if (session.position === pieces.flat().length + 1) {
            expect(session.logits()).toEqual(await freshLogits(model, [...pieces, [3]]));
          }
          await session.close();
        }
      }),
      { numRuns: way === 'reference' ? 4 : 8, seed: 2 },
    );
  });
});

describe('a fork', () => {
  const greedy = { temperature: 0, ignoreEos: true, maxTokens: 5 };
  const generate = async (session: Session, options = {}) => {
    const tokens = [];
    for await (const token of session.generate({ ...greedy, ...options })) tokens.push(token);
    return tokens;
  };
  const arch4 = async (options: OpenModelOptions = WAYS['native f32']!) =>
    opened((await goldenFile('arch4', { tokenizer: tokenizerMetadata() })).bytes, options);

  it.each(['reference', 'native f32'])('of the %s engine goes on as the session does', async (way) => {
    const session = (await arch4(WAYS[way]!)).createSession();
    await generate(session, { ids: [5, 6] });
    await using fork = session.fork();
    expect(fork.ids).toEqual(session.ids);
    expect(fork.logits()).toEqual(session.logits());
    expect(fork.stats()).toMatchObject({ promptTokens: 0, generatedTokens: 0 });
    const theirs = await generate(fork);
    expect(theirs).toEqual(await generate(session));
  });

  it('shares memory until it goes on, and frees it with the last', async () => {
    const model = await opened(await MODELS.llama!({}), WAYS['native f32']!);
    const page = 3 * 64 * 2 * 2 * 24 * 4;
    const session = model.createSession();
    await session.prefill(Array(100).fill(1));
    const fork = session.fork();
    expect(fork.stats().cacheBytes).toBe(2 * page);
    await fork.prefill([1]);
    await session.close();
    expect(fork.stats().cacheBytes).toBe(2 * page);
    const other = fork.fork();
    await fork.truncate(0);
    expect(fork.stats().cacheBytes).toBe(0);
    await other.prefill([7]);
    const pieces = [Array(100).fill(1), [1], [7]];
    expect(other.logits()).toEqual(await freshLogits(model, pieces));
  });

  it('is refused while a call runs, after close, and where pages are on disk', async () => {
    const slow = await opened(await slowModel(), { ...SLOWLY, engine: 'native' });
    const busy = slow.createSession();
    const running = busy.prefill(LONG.slice(0, 50));
    expect(() => busy.fork()).toThrowError(/busy/);
    await running;
    await slow.close();
    expect(() => busy.fork()).toThrowError(/closed/);
    const page = 64 * 2 * 2 * 24 * 4;
    const spilling = await opened(await MODELS.llama!({}), {
      engine: 'native',
      cache: 'f32',
      maxBatch: 8,
      cacheMemory: 5.5 * page,
      spillDirectory: directory(),
    });
    const session = spilling.createSession();
    await session.prefill([1, 2, 3]);
    await using fork = session.fork();
    await fork.prefill([4, 5]);
    expect(fork.logits()).toEqual(
      await freshLogits(spilling, [
        [1, 2, 3],
        [4, 5],
      ]),
    );
    await session.prefill(Array(120).fill(1));
    expect(() => session.fork()).toThrowError(
      expect.objectContaining({ code: 'UNSUPPORTED', message: expect.stringContaining('on disk') }),
    );
    await session.prefill([1]);
  });
});
