import { crc32 } from 'node:zlib';
import { type ByteSink, CflowError, elements, ModelWriter, modelTensors, PRESETS } from '@cflow/format';
import { expect, it } from 'vitest';
import { draftMetadata } from '../src/convert.js';
import { DelayedMoESource } from '../src/pipeline/delayed-moe.js';
import { runPipeline } from '../src/pipeline/pipeline.js';

const config = {
  ...PRESETS.arch2_4!,
  hiddenDim: 64,
  vocabSize: 300,
  layers: PRESETS.arch2_4!.layers.slice(0, 3).map((layer) => ({
    ...layer,
    attention: { ...layer.attention, heads: 2, kvHeads: 2, headDim: 64 },
    ffn: { ...layer.ffn!, dim: 160 },
    experts: { ...layer.experts!, count: 3, topK: 2, dim: 96 },
  })),
};
const options = { dtype: 'q4_0', scaleSearch: true, zeroNonfinite: false, threads: 2 } as const;
const metadata = draftMetadata(config, options);
const shapes = new Map(modelTensors(config).map(({ name, shape }) => [name, shape]));

/** Counts what is read; every weight is 0.5. */
function constantSource() {
  const reads: string[] = [];
  const rowsF32 = async (name: string, rowStart: number, rows: number) => {
    reads.push(name);
    const [, ...rest] = shapes.get(name)!;
    expect(rowStart + rows).toBeLessThanOrEqual(shapes.get(name)![0]!);
    return new Float32Array(rows * elements(rest)).fill(0.5);
  };
  return { reads, source: new DelayedMoESource({ rowsF32 }) };
}

const writerTo = (sink: ByteSink) =>
  new ModelWriter(sink, { dtype: 'q4_0', container: 'cflow', metadata, crc32 });

it('writes in the order of the file, without gaps, and reports every byte', async () => {
  const writes: [number, number][] = [];
  const writer = writerTo({ name: 'test', write: async (at, bytes) => void writes.push([at, bytes.length]) });
  let progress = 0;
  const { source } = constantSource();
  const onProgress = (done: number) => {
    expect(done).toBeGreaterThanOrEqual(progress);
    progress = done;
  };
  expect(await runPipeline(source, writer, [], { ...options, onProgress })).toEqual([]);
  for (const [index, [at]] of writes.entries()) {
    if (index) expect(at).toBe(writes[index - 1]![0] + writes[index - 1]![1]);
  }
  expect(progress).toBe(writer.layout.fileBytes);
});

it('stops reading soon after a write has failed: what is under way is bounded', async () => {
  const { reads, source } = constantSource();
  const full: ByteSink = {
    name: 'full',
    write: async () => {
      throw new CflowError('WRITE_FAILED', 'no space');
    },
  };
  await expect(runPipeline(source, writerTo(full), [], options)).rejects.toMatchObject({
    code: 'WRITE_FAILED',
  });
  // Two stripes a thread, one more being read.
  expect(reads.length).toBeLessThanOrEqual(5);
});

it('stops when asked to', async () => {
  const { reads, source } = constantSource();
  const signal = AbortSignal.abort();
  const writer = writerTo({ name: 'test', write: async () => undefined });
  await expect(runPipeline(source, writer, [], { ...options, signal })).rejects.toMatchObject({
    code: 'INTERRUPTED',
  });
  expect(reads.length).toBeLessThanOrEqual(1);
});
