/** Plain tensors behind tiles of odd sizes lie anywhere; both engines read them. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { memorySource, openModel, parseModelConfig, streamPieces } from '@cflow/format';
import { makeConfig, makeModel } from '@cflow/test-kit/models';
import { afterAll, expect, it } from 'vitest';
import { type EngineName, Model } from '../src/index.js';

const directory = mkdtempSync(join(tmpdir(), 'cflow-alignment-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

/** The down projection [33, 32] of q4_0 has 33 × 18 bytes, so the factor of the residual behind it is at 2 mod 4. */
const plain = makeConfig({ layers: 2, experts: 0, hiddenDim: 33 });
const config = parseModelConfig({
  ...plain,
  combineStyle: 'sequential',
  layers: plain.layers.map((layer) => ({ ...layer, ffn: { ...layer.ffn, dim: 32 }, outputScale: true })),
});

async function logitsOf(
  path: string,
  engine: EngineName,
  weights?: 'mapped' | 'resident',
): Promise<Float32Array> {
  await using model = await Model.open(path, {
    engine,
    threads: 1,
    arithmetic: 'f32',
    ...(weights && { weights }),
  });
  await using session = model.createSession();
  await session.prefill([1, 2, 3]);
  return session.logits();
}

it.each([5, 6] as const)('an f32 number at 2 mod 4, in version %d', async (version) => {
  const { bytes } = await makeModel(config, 'q4_0', 'cflow', { version });
  const file = await openModel(memorySource(bytes));
  const { offset, stream } = file.streams.get('layers.0.dense')!;
  expect((offset + [...streamPieces(stream, 'q4_0')].at(-1)!.offset) % 4).toBe(2);
  const path = join(directory, `${version}.cflow`);
  writeFileSync(path, bytes);
  const reference = await logitsOf(path, 'reference');
  for (const weights of ['mapped', 'resident'] as const) {
    const native = await logitsOf(path, 'native', weights);
    for (const [i, x] of native.entries()) expect(x).toBeCloseTo(reference[i]!, 3);
  }
});
