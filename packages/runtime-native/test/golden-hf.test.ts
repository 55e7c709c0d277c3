/** Checkpoints that transformers saved, converted to f32 tiles, against the logits of transformers: both engines. */

import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { convert } from '@cflow/convert';
import { describe, expect, it, onTestFinished } from 'vitest';
import { ENGINES, type EngineName, Model } from '../src/model.js';

const HF = fileURLToPath(new URL('golden/hf', import.meta.url));
const TOLERANCE = 1e-4;
const PROMPT = 20;
const NAMES = readdirSync(HF);

interface Expected {
  tokens: number[];
  logits: number[][];
}

async function converted(source: string): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'cflow-golden-'));
  onTestFinished(() => rm(dir, { recursive: true }));
  const output = join(dir, 'model.cflow');
  await convert({ source, output, dtype: 'f32', threads: 1 });
  return output;
}

/** Largest difference of two vectors relative to the largest value expected. */
function difference(actual: Float32Array, expected: readonly number[]): number {
  const scale = Math.max(...expected.map(Math.abs));
  return Math.max(...expected.map((value, i) => Math.abs(actual[i]! - value))) / scale;
}

async function differences(
  file: string,
  engine: EngineName,
  { tokens, logits }: Expected,
): Promise<number[]> {
  const model = await Model.open(file, { engine, arithmetic: 'f32' });
  const session = model.createSession();
  const found: number[] = [];
  try {
    // Most at once, as a prompt, the rest one by one, as decoding does.
    const onLogits = (i: number, row: Float32Array) => found.push(difference(row, logits[i]!));
    await session.prefill(tokens.slice(0, PROMPT), { onLogits });
    for (const [i, token] of tokens.entries()) {
      if (i < PROMPT) continue;
      await session.decode(token);
      found.push(difference(session.logits(), logits[i]!));
    }
  } finally {
    await model.close();
  }
  return found;
}

describe.each(NAMES)('%s as transformers saved it', (name) => {
  const source = join(HF, name);
  const expected = JSON.parse(readFileSync(join(source, 'expected.json'), 'utf8')) as Expected;

  it.each(Object.keys(ENGINES) as EngineName[])('%s: logits over 32 positions', async (engine) => {
    const found = await differences(await converted(source), engine, expected);
    expect(found).toHaveLength(32);
    expect(Math.max(...found)).toBeLessThan(TOLERANCE);
  });
});
