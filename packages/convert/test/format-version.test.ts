/** Both versions of the format, from checkpoints to tokens: same weights, same tokens, every way to lay them out. */

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  type FormatVersion,
  type ModelConfig,
  openModel,
  parseModelConfig,
  verifyModel,
} from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { type EngineName, Model } from '@cflow/runtime-native';
import { makeConfig, makeModel } from '@cflow/test-kit/models';
import { afterAll, describe, expect, it } from 'vitest';
import { convert, dryRun } from '../src/index.js';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
const GOLDEN = 'packages/runtime-native/test/golden';
const CHECKPOINTS = [
  'models/stories-arch2_4',
  `${GOLDEN}/arch3`,
  `${GOLDEN}/arch5`,
  `${GOLDEN}/hf/gemma4_moe`,
  `${GOLDEN}/hf/mixtral_fused`,
  `${GOLDEN}/hf/qwen3`,
];
const ENGINES: EngineName[] = ['native', 'reference'];

const directory = mkdtempSync(join(tmpdir(), 'cflow-versions-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));
const at = (name: string) => join(directory, name);

async function logitsOf(path: string, engine: EngineName): Promise<Float32Array> {
  await using model = await Model.open(path, { engine, threads: 1 });
  await using session = model.createSession();
  await session.prefill([1, 2]);
  await session.decode(3);
  return session.logits();
}

async function faults(path: string): Promise<number> {
  const source = await openFileSource(path);
  let count = 0;
  for await (const _ of verifyModel(source, await openModel(source))) count++;
  await source.close();
  return count;
}

async function versionOf(path: string): Promise<FormatVersion> {
  const source = await openFileSource(path);
  const { layout } = await openModel(source);
  await source.close();
  return layout.version;
}

describe.each(CHECKPOINTS)('%s', (checkpoint) => {
  it.each(['cflow', 'vflow'])(
    '5 → 6 → 5 is the same file, and 6 gives the logits of 5: .%s',
    async (container) => {
      const other = container === 'cflow' ? 'vflow' : 'cflow';
      const [five, six, direct, back] = [
        `five.${container}`,
        `six.${other}`,
        `direct.${other}`,
        `back.${container}`,
      ].map(at);
      const common = { overwrite: true, threads: 1 } as const;
      await convert({ ...common, source: join(ROOT, checkpoint), output: five! });
      await convert({ ...common, source: five!, output: six!, formatVersion: 6, verify: true });
      await convert({ ...common, source: join(ROOT, checkpoint), output: direct!, formatVersion: 6 });
      expect(Buffer.compare(readFileSync(six!), readFileSync(direct!))).toBe(0);
      await convert({ ...common, source: six!, output: back!, formatVersion: 5 });
      expect(Buffer.compare(readFileSync(five!), readFileSync(back!))).toBe(0);
      for (const engine of ENGINES)
        expect(await logitsOf(six!, engine)).toEqual(await logitsOf(five!, engine));
    },
  );
});

/** One layer of a thin model. */
function thin(shape: { ffn?: number; experts?: number; topK?: number }): ModelConfig {
  const config = makeConfig({
    layers: 1,
    experts: shape.experts ?? 0,
    ffn: !shape.experts,
    hiddenDim: 32,
    vocabSize: 64,
  });
  const { attention, ffn, experts } = config.layers[0]!;
  return parseModelConfig({
    ...config,
    layers: [
      {
        attention,
        ...(ffn ? { ffn: { ...ffn, dim: shape.ffn } } : {}),
        ...(experts ? { experts: { ...experts, dim: 8, topK: shape.topK } } : {}),
      },
    ],
  });
}

describe.each([
  ['512 experts, 10 of them a token', thin({ experts: 512, topK: 10 }), 'layers.0.experts.count is 512'],
  ['an FFN of 73,728', thin({ ffn: 73_728 }), 'layers.0.ffn.dim is 73728'],
] as const)('%s', (_, config, why) => {
  const note = `written as version 6 of the format: ${why}, version 5 of the format holds at most`;

  it('is converted as version 6 with a note, verified and run by both engines', async () => {
    const { bytes } = await makeModel(config, 'f32', 'cflow');
    writeFileSync(at('made.cflow'), bytes);
    await convert({
      source: at('made.cflow'),
      output: at(`checkpoint-${config.layers[0]!.ffn ? 'ffn' : 'experts'}/`),
    });
    const source = at(`checkpoint-${config.layers[0]!.ffn ? 'ffn' : 'experts'}/`);
    for (const container of ['cflow', 'vflow']) {
      const output = at(`wide.${container}`);
      const result = await convert({ source, output, dtype: 'q8_0', verify: true, overwrite: true });
      expect(result.notes).toContainEqual(expect.stringContaining(note));
      expect(await versionOf(output)).toBe(6);
      expect(await faults(output)).toBe(0);
      const [native, reference] = [await logitsOf(output, 'native'), await logitsOf(output, 'reference')];
      const largest = reference.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
      const worst = native.reduce((most, x, i) => Math.max(most, Math.abs(x - reference[i]!)), 0);
      expect(worst).toBeLessThan(0.05 * largest);
    }
    await expect(convert({ source, output: at('no.cflow'), formatVersion: 5 })).rejects.toMatchObject({
      code: 'LIMIT_EXCEEDED',
      message: expect.stringContaining(why),
    });
    expect((await dryRun({ source, output: at('dry.cflow') })).notes).toContainEqual(
      expect.stringContaining(note),
    );
    rmSync(source, { recursive: true });
  });
});
