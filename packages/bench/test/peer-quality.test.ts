/** Quality beside llama.cpp: figures by hand, logits as they are kept, tokens that are judged. */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { convert } from '@cflow/convert';
import { Model } from '@cflow/runtime-native';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { logitsAfter } from '../src/engines/llama.js';
import { promptIds } from '../src/experiments/decode/run.js';
import { checkedIds } from '../src/experiments/peers/bench.js';
import { runLogits } from '../src/experiments/peers/logits.js';
import { qualityOf } from '../src/experiments/peers/quality.js';
import { synthesizeModel } from '../src/synth/model.js';

const STORIES = fileURLToPath(new URL('../../../models/stories-arch2_4', import.meta.url));
let directory: string;
let file: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-peer-quality-test-'));
  file = join(directory, 'model.cflow');
  await convert({ source: STORIES, output: file });
});
afterAll(() => rm(directory, { recursive: true }));

/** Logits of two tokens with these odds; shifted, as logits may be. */
const odds = (a: number, b: number) => Float32Array.of(Math.log(a) + 3, Math.log(b) + 3);

describe('figures', () => {
  const [even, ours, theirs] = [odds(1, 1), odds(3, 1), odds(1, 3)];

  it('of one position, by hand', async () => {
    const quality = await qualityOf([{ exact: even, ours, theirs, next: 0 }]);
    // Token 0 has 3/4 and 1/4. KL of (½, ½) from either is ½ ln ⅔ + ½ ln 2; of one from the other ¾ ln 3 − ¼ ln 3.
    expect(quality.ours.perplexity).toBeCloseTo(4 / 3, 5);
    expect(quality.theirs.perplexity).toBeCloseTo(4, 5);
    const kl = 0.5 * Math.log(2 / 3) + 0.5 * Math.log(2);
    expect([quality.ours.kl, quality.theirs.kl]).toEqual([expect.closeTo(kl, 6), expect.closeTo(kl, 6)]);
    expect(quality.between).toBeCloseTo(Math.log(3) / 2, 6);
    expect([quality.positions, quality.sameToken]).toEqual([1, 0]);
  });

  it('are means, and the last position of a text predicts nothing', async () => {
    const same = { exact: ours, ours, theirs: ours };
    const quality = await qualityOf([
      { exact: even, ours, theirs, next: 0 },
      { ...same, next: 1 },
      { ...same, next: undefined },
      { ...same, next: undefined },
    ]);
    // Ours gives 3/4 and 1/4 to what follows, theirs 1/4 twice: e^(mean of −ln) is 4/√3 and 4.
    expect(quality.ours.perplexity).toBeCloseTo(4 / Math.sqrt(3), 5);
    expect(quality.theirs.perplexity).toBeCloseTo(4, 5);
    expect(quality.between).toBeCloseTo(Math.log(3) / 8, 6);
    expect([quality.positions, quality.sameToken]).toEqual([4, 0.75]);
  });

  it('have no perplexity where nothing follows', async () => {
    const { ours: own } = await qualityOf([{ exact: even, ours, theirs, next: undefined }]);
    expect(own.perplexity).toBeUndefined();
  });
});

describe('logits', () => {
  it('of the peer come by token, however they are sorted, and without sampling filters', async () => {
    const asked: unknown[] = [];
    const sequence = {
      controlledEvaluate: async (input: readonly unknown[]) => {
        asked.push(...input);
        return (input as [number, unknown][]).map(([id]) => ({
          next: {
            logits: new Map([
              [2, id + 0.5],
              [0, id],
              [1, -id],
            ]),
          },
        }));
      },
    };
    const rows: number[][] = [];
    const ids = Array.from({ length: 150 }, (_, i) => i + 1);
    await logitsAfter(sequence, ids, (logits) => void rows.push([...logits]));
    expect(rows).toEqual(ids.map((id) => [id, -id, id + 0.5]));
    const options = { temperature: 1, topK: 0, topP: 1, minP: 0 };
    expect(asked[149]).toEqual([150, { generateNext: { logits: true, options } }]);
  });

  it('of ours are kept row by row; exact ones are those of the interpreter', async () => {
    const sequences = [
      [5, 80, 3],
      [7, 900],
    ];
    const output = join(directory, 'logits');
    const run = await runLogits({ engine: 'cflow', file, threads: 1, exact: true, sequences, output });
    const bytes = await readFile(output);
    expect(bytes.length).toBe(5 * 4 * run.vocabSize);
    await using model = await Model.open(file, { engine: 'reference' });
    let row = 0;
    for (const ids of sequences) {
      await using session = model.createSession();
      for (const id of ids) {
        await session.decode(id);
        const expected = session.logits();
        expect(run.vocabSize).toBe(expected.length);
        for (let i = 0; i < expected.length; i += 97)
          expect(bytes.readFloatLE(4 * (row * run.vocabSize + i))).toBeCloseTo(expected[i]!, 3);
        row++;
      }
    }
  });
});

describe('tokens that are judged', () => {
  it('are of the texts, so many in all', async () => {
    const texts = join(directory, 'texts.txt');
    await writeFile(texts, 'Once upon a time.\n<|endoftext|>\nLily saw a big dog in the park.');
    await using model = await Model.open(file);
    const [first, second] = ['Once upon a time.', 'Lily saw a big dog in the park.'].map((text) =>
      model.tokenizer!.encode(text),
    );
    expect(await checkedIds(file, texts, 1000)).toEqual([first, second]);
    expect(await checkedIds(file, texts, first!.length + 2)).toEqual([first, second!.slice(0, 2)]);
  });

  it('are pseudo-random without texts, or without a tokenizer; a context long at most', async () => {
    expect(await checkedIds(file, undefined, 9)).toEqual([promptIds(9, 2048)]);
    expect((await checkedIds(file, undefined, 9999))[0]).toHaveLength(384);
    const dense = join(directory, 'dense.cflow');
    await synthesizeModel({ target: dense, format: 'cflow', dtype: 'q4_0', seed: 1, geometry: 'llama-tiny' });
    expect(await checkedIds(dense, 'no-such-file', 4)).toEqual([promptIds(4, 523)]);
  });
});
