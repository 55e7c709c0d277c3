/** Exports of tensors that are larger than memory should have to hold. */

import { makeConfig } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import {
  type ByteSource,
  type Dtype,
  encodeHead,
  exportSafetensors,
  type ModelConfig,
  openModel,
  parameterCount,
  planLayout,
  safetensorsBytes,
  streamPieces,
  stripeId,
  writeStripeHeaders,
} from '../src/index.js';

/** A model of zeros without metadata, of which only the head is in memory. Notes the longest read. */
function virtualModel(config: ModelConfig, dtype: Dtype): ByteSource & { longest: number } {
  const layout = planLayout(config, dtype, 'cflow', 0);
  const head = encodeHead(layout, new Uint8Array(0));
  const pieces = new Map(
    layout.regions.flatMap(({ offset, stream }) =>
      [...(stream ? streamPieces(stream, dtype) : [])].map(
        (piece) => [offset + piece.offset, piece] as const,
      ),
    ),
  );
  const source = {
    name: 'virtual.cflow',
    size: layout.fileBytes,
    longest: 0,
    read: async (offset: number, length: number) => {
      if (offset + length <= head.length) return head.subarray(offset, offset + length);
      source.longest = Math.max(source.longest, length);
      const bytes = new Uint8Array(length);
      const piece = pieces.get(offset);
      if (piece?.kind !== 'stripe') return bytes;
      const { rows, tensor } = piece.stripe;
      writeStripeHeaders(dtype, bytes, rows, tensor.shape[1]!, stripeId(piece.stripe, layout.version));
      return bytes;
    },
  };
  return source;
}

describe('export of a large tensor', () => {
  it('reads and writes it by stripes of 128 rows, and covers the file without a gap', async () => {
    const config = makeConfig({ experts: 0, layers: 1, vocabSize: 40_000, hiddenDim: 256 });
    const source = virtualModel(config, 'q4_0');
    const file = await openModel(source);
    const written: [at: number, length: number][] = [];
    const sink = {
      name: 'counted',
      write: async (at: number, bytes: Uint8Array) => void written.push([at, bytes.length]),
    };
    const bytes = await exportSafetensors(source, file, sink);
    const [[, head]] = written as [[number, number]];
    expect(bytes).toBe(head + 4 * parameterCount(config));
    expect(source.longest).toBe(18_448);
    expect(Math.max(...written.slice(1).map(([, length]) => length))).toBe(128 * 256 * 4);
    written.sort(([a], [b]) => a - b);
    let end = 0;
    for (const [at, length] of written) {
      expect(at).toBe(end);
      end = at + length;
    }
    expect(end).toBe(bytes);
  });

  it('knows the size of 140,000 × 8,192 without touching a weight', async () => {
    const config = makeConfig({ experts: 0, layers: 1, vocabSize: 140_000, hiddenDim: 8_192 });
    const source = virtualModel(config, 'q4_0');
    const bytes = safetensorsBytes(await openModel(source));
    expect(bytes).toBeGreaterThan(2 * 4 * 140_000 * 8_192);
    expect((bytes - 4 * parameterCount(config)) % 8).toBe(0);
    expect(source.longest).toBe(0);
  });
});
