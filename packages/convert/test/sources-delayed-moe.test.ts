import { type Layout, modelStreams, parseModelConfig, type Region } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { DelayedMoESource } from '../src/pipeline/delayed-moe.js';

const config = parseModelConfig({
  name: 'm',
  family: 'cflow',
  hiddenDim: 4,
  vocabSize: 130,
  contextLength: 8,
  normEps: 1e-6,
  combineStyle: 'delayedSum',
  tiedEmbeddings: true,
  denseDelay: 1,
  layers: Array.from({ length: 2 }, () => ({
    attention: { heads: 1, kvHeads: 1, headDim: 4, scale: 0.5 },
    ffn: { dim: 200, activation: 'gelu' },
  })),
});

/** A layout in an order of the test's own, so that the order can only come from the regions. */
function layoutOf(names: string[]): Layout {
  const streams = new Map(modelStreams(config).map((stream) => [stream.name, stream]));
  const regions: Region[] = [
    { name: 'header', kind: 'header', offset: 0, length: 88 },
    ...names.map(
      (name): Region => ({ name, kind: 'stream', offset: 0, length: 0, stream: streams.get(name)! }),
    ),
  ];
  return { version: 5, container: 'cflow', dtype: 'f32', config, regions, groups: [], fileBytes: 88 };
}

describe('DelayedMoESource', () => {
  it('reads stripe by stripe in the order of the file, one read each, and only when asked', async () => {
    const reads: string[] = [];
    const source = new DelayedMoESource({
      rowsF32: async (name, from, rows) => {
        reads.push(`${name} ${from}+${rows}`);
        return Float32Array.of(from);
      },
    });
    const got: [string, number | undefined, number][] = [];
    for await (const { region, stripe, rows } of source.stripes(
      layoutOf(['layers.1.dense', 'layers.0.attention', 'embedding']),
    )) {
      got.push([region.name, stripe?.matrixId, rows[0]!]);
      expect(reads).toHaveLength(got.length);
    }
    expect(reads).toEqual([
      'layers.1.ffn_norm.weight 0+4',
      'layers.1.ffn.gate_proj.weight 0+128',
      'layers.1.ffn.up_proj.weight 0+128',
      'layers.1.ffn.gate_proj.weight 128+72',
      'layers.1.ffn.up_proj.weight 128+72',
      'layers.1.ffn.down_proj.weight 0+4',
      'layers.0.attn_norm.weight 0+4',
      'layers.0.attn.q_proj.weight 0+4',
      'layers.0.attn.k_proj.weight 0+4',
      'layers.0.attn.v_proj.weight 0+4',
      'layers.0.attn.o_proj.weight 0+4',
      'embed_tokens.weight 0+128',
      'embed_tokens.weight 128+2',
    ]);
    expect(got[0]).toEqual(['layers.1.dense', undefined, 0]);
    expect(got[12]).toEqual(['embedding', expect.any(Number), 128]);
  });
});
