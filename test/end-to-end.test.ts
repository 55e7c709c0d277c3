/** From a checkpoint directory through a converted file to logits, against PyTorch and transformers. */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { convert } from '@cflow/convert';
import { Model } from '@cflow/runtime-native';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const GOLDEN = fileURLToPath(new URL('../packages/runtime-native/test/golden', import.meta.url));

interface Trace {
  tokens: number[];
  logits: Record<string, number[]>;
  argmax: number[];
}

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-e2e-'));
});
afterAll(() => rm(directory, { recursive: true, force: true }));

/** Logits after each token of a trace. */
async function logitsOf(file: string, tokens: number[]): Promise<Float32Array[]> {
  await using model = await Model.open(file);
  const logits: Float32Array[] = [];
  await model.createSession().prefill(tokens, { onLogits: (_, values) => logits.push(values.slice()) });
  return logits;
}

/** Largest difference relative to the largest expected value. */
function difference(actual: ArrayLike<number>, expected: readonly number[]): number {
  const scale = Math.max(...expected.map(Math.abs));
  return Math.max(...expected.map((value, i) => Math.abs(actual[i]! - value))) / scale;
}

const argmax = (values: Float32Array) => values.indexOf(Math.max(...values));

/** Those made by transformers are in a folder of their own, and have tests of their own. */
const TRACED = (await readdir(GOLDEN, { withFileTypes: true }))
  .filter((entry) => entry.isDirectory() && entry.name !== 'hf')
  .map(({ name }) => name);

describe.each(TRACED)('%s', (arch) => {
  test('f32 files of both containers, converted and re-laid, give the logits of the reference', async () => {
    const trace = JSON.parse(await readFile(join(GOLDEN, arch, 'trace.json'), 'utf8')) as Trace;
    const file = (name: string) => join(directory, `${arch}-${name}`);
    const source = join(GOLDEN, arch);
    await convert({ source, output: file('a.cflow'), dtype: 'f32', threads: 1, verify: true });
    await convert({ source, output: file('a.vflow'), dtype: 'f32', threads: 2, verify: true });
    await convert({ source: file('a.cflow'), output: file('b.vflow'), verify: true });
    await convert({ source: file('a.vflow'), output: file('b.cflow') });
    expect((await readFile(file('b.vflow'))).equals(await readFile(file('a.vflow')))).toBe(true);
    expect((await readFile(file('b.cflow'))).equals(await readFile(file('a.cflow')))).toBe(true);
    for (const name of ['a.cflow', 'a.vflow']) {
      const logits = await logitsOf(file(name), trace.tokens);
      expect(logits.map(argmax)).toEqual(trace.argmax);
      for (const [position, expected] of Object.entries(trace.logits)) {
        expect(difference(logits[Number(position)]!, expected)).toBeLessThan(1e-4);
      }
    }
  });
});
