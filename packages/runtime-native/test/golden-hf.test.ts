/** Checkpoints that transformers saved, converted to f32 tiles, against the logits of transformers: both engines. */

import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { convert, readModelConfig } from '@cflow/convert';
import type { TransferMode } from '@cflow/format';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { EngineName } from '../src/defaults.js';
import { ENGINES, Model } from '../src/model.js';
import { difference } from './helpers.js';

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

const argmax = (row: ArrayLike<number>) => Array.from(row).indexOf(Math.max(...Array.from(row)));

/** A row of logits for each token. */
async function logitsOf(
  file: string,
  engine: EngineName,
  tokens: readonly number[],
): Promise<Float32Array[]> {
  const model = await Model.open(file, { engine, arithmetic: 'f32' });
  const session = model.createSession();
  const found: Float32Array[] = [];
  try {
    // Most at once, as a prompt, the rest one by one, as decoding does.
    const onLogits = (_: number, row: Float32Array) => found.push(row.slice());
    await session.prefill(tokens.slice(0, PROMPT), { onLogits });
    for (const [i, token] of tokens.entries()) {
      if (i < PROMPT) continue;
      await session.decode(token);
      found.push(session.logits().slice());
    }
  } finally {
    await model.close();
  }
  return found;
}

/** The same configuration as transformers 4 wrote it. */
function older(json: Record<string, unknown>): Record<string, unknown> {
  const {
    rope_parameters: rope,
    dtype,
    layer_types: types,
    num_local_experts: experts,
    ...rest
  } = json as {
    rope_parameters: Record<string, unknown>;
    dtype: string;
    layer_types?: string[];
    num_local_experts?: number;
  };
  const scaled = ({ rope_theta: _, rope_type: type, ...more }: Record<string, unknown>) =>
    type === 'default' ? null : { type, ...more };
  const { full_attention: full, sliding_attention: sliding } = rope as Record<
    string,
    Record<string, unknown>
  >;
  const spoken =
    full && sliding
      ? {
          rope_theta: full.rope_theta,
          rope_local_base_freq: sliding.rope_theta,
          rope_scaling: scaled(full),
          layer_types: types,
        }
      : { rope_theta: rope.rope_theta, rope_scaling: scaled(rope) };
  const name = json.model_type === 'mixtral' ? 'num_local_experts' : 'num_experts';
  return { ...rest, torch_dtype: dtype, ...spoken, ...(experts && { [name]: experts }) };
}

/** Families that transformers 4 has with the same fields; layer types of Qwen it derives. */
const OLDER = NAMES.filter((name) => !name.startsWith('gemma4') && !/wrapped|_vl_/.test(name));

it.each(OLDER)('%s: the spelling of transformers 4 means the same', (name) => {
  const json = JSON.parse(readFileSync(join(HF, name, 'config.json'), 'utf8')) as Record<string, unknown>;
  const read = (config: object) =>
    readModelConfig(config as never, { name: 'm', file: 'config.json' }).config;
  const spelled = older(json);
  expect(spelled).not.toEqual(json);
  expect(read(spelled)).toEqual(read(json));
});

it.each(['gemma4_moe', 'gemma4_ple', 'olmo2', 'mixtral'])('%s: transfers change no bit', async (name) => {
  const file = await converted(join(HF, name));
  const { tokens } = JSON.parse(readFileSync(join(HF, name, 'expected.json'), 'utf8')) as Expected;
  const logits = async (transfers: TransferMode) => {
    const model = await Model.open(file, { engine: 'reference', transfers });
    const session = model.createSession();
    await session.prefill(tokens.slice(0, 12));
    const last = session.logits();
    await model.close();
    return last;
  };
  const none = await logits('none');
  for (const transfers of ['stall', 'overlap'] as const) expect(await logits(transfers)).toEqual(none);
});

describe.each(NAMES)('%s as transformers saved it', (name) => {
  const source = join(HF, name);
  const expected = JSON.parse(readFileSync(join(source, 'expected.json'), 'utf8')) as Expected;

  it.each(Object.keys(ENGINES) as EngineName[])('%s: logits at every position', async (engine) => {
    const rows = await logitsOf(await converted(source), engine, expected.tokens);
    expect(rows).toHaveLength(expected.logits.length);
    const differences = rows.map((row, i) => difference(row, expected.logits[i]!));
    expect(Math.max(...differences)).toBeLessThan(TOLERANCE);
    expect(rows.map(argmax)).toEqual(expected.logits.map(argmax));
  });
});
