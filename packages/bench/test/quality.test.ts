import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { convert } from '@cflow/convert';
import { Model } from '@cflow/runtime-native';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { benchQuality } from '../src/experiments/quality.js';
import { klDivergence } from '../src/runner/statistics.js';

const SOURCE = fileURLToPath(new URL('../../../models/stories-arch2_4', import.meta.url));
const BIN = fileURLToPath(new URL('../bin/cflow-bench.js', import.meta.url));
const STORIES = [
  'Once upon a time, there was a little girl named Lily. She loved to play outside in the park.',
  'One day, a boy named Tim went to the park with his mom. He saw a big dog. The dog was happy.',
  'This third story is not asked for.',
];

let directory: string;
let texts: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-quality-test-'));
  texts = join(directory, 'texts.txt');
  await writeFile(texts, STORIES.join('\n<|endoftext|>\n'));
});
afterEach(() => rm(directory, { recursive: true }));

/** Mean loss of the reference engine on f32 weights, summed here from its logits. */
async function exactNats(stories: readonly string[]): Promise<number> {
  const output = join(directory, 'exact.cflow');
  await convert({ source: SOURCE, output, dtype: 'f32' });
  await using model = await Model.open(output, { engine: 'reference' });
  const losses: number[] = [];
  for (const story of stories) {
    const ids = model.tokenizer!.encode(story);
    await model.createSession().prefill(ids, {
      onLogits: (i, logits) => {
        if (i + 1 === ids.length) return;
        const sum = logits.reduce((total, logit) => total + Math.exp(logit), 0);
        losses.push(Math.log(sum) - logits[ids[i + 1]!]!);
      },
    });
  }
  return losses.reduce((total, loss) => total + loss, 0) / losses.length;
}

it('scores f32 as the reference engine does, and every other row against it', async () => {
  const { rows, documents } = await benchQuality({ source: SOURCE, texts, documents: 2, arithmetic: 'f32' });
  expect(documents).toBe(2);
  expect(rows[0]!.nats).toBeCloseTo(await exactNats(STORIES.slice(0, 2)), 4);
  const [exact, q8, report, searched] = rows as [(typeof rows)[0], ...typeof rows];
  expect(rows.map(({ weights }) => weights.split(',')[0])).toEqual(['f32', 'q8_0', 'q4_0', 'q4_0']);
  for (const row of rows) {
    expect(row.perplexity).toBeCloseTo(Math.exp(row.nats), 6);
    expect(row.cost).toBeCloseTo(row.perplexity / exact.perplexity - 1, 12);
  }
  expect(Math.abs(q8!.cost)).toBeLessThan(0.01);
  expect(q8!.fileBytes).toBeLessThan(exact.fileBytes / 3);
  expect(report!.fileBytes).toBeLessThan(q8!.fileBytes);
  expect(exact.divergence).toEqual({ kl: expect.closeTo(0, 12), sameToken: 1 });
  expect(q8!.divergence.kl).toBeGreaterThan(0);
  expect(report!.divergence.kl).toBeGreaterThan(10 * q8!.divergence.kl);
  expect(q8!.divergence.sameToken).toBeGreaterThan(0.9);
  expect(searched!.nats).not.toBe(report!.nats);
});

it('the divergence of two distributions, by hand', () => {
  // p = (3/4, 1/4), q = (1/4, 3/4): ¾ ln 3 − ¼ ln 3. Logits may be shifted.
  const [p, q] = [Float32Array.of(Math.log(3) + 5, 5), Float32Array.of(0, Math.log(3))];
  expect(klDivergence(p, q)).toBeCloseTo(Math.log(3) / 2, 6);
  expect(klDivergence(p, p)).toBe(0);
  // Impossible tokens add nothing; large logits do not overflow.
  expect(klDivergence(Float32Array.of(1000, 0), Float32Array.of(1000, 1000))).toBeCloseTo(Math.log(2), 6);
});

it('the command prints a row for each way to store the weights', async () => {
  const command = promisify(execFile)(process.execPath, [BIN, 'quality', SOURCE, texts, '--documents', '1']);
  const lines = (await command).stdout.trimEnd().split('\n');
  expect(lines).toHaveLength(6);
  expect(lines[0]).toMatch(/tokens of 1 document, f32 arithmetic$/);
  expect(lines[2]).toMatch(/^f32 .*\+0\.00 %$/);
});
