import {
  type ModelConfig,
  type ModelFile,
  memorySource,
  openModel,
  PRESETS,
  planLayout,
  regionOf,
} from '@cflow/format';
import { describe, expect, test } from 'vitest';
import { inspect } from '../src/inspect.js';
import { render } from '../src/render.js';
import { describe as describeFile } from '../src/report.js';
import { inspectReportSchema, type StatsRow } from '../src/schema.js';
import { Moments, tensorStats } from '../src/stats.js';
import { clip, ranges, short, wrap } from '../src/text.js';
import { geometryInWords } from '../src/words.js';
import { buildModel, RecordingSource, tinyConfig } from './build.js';

/** A ModelFile of a config without any weights: reports are made of the head alone. */
function planned(config: ModelConfig, container: 'cflow' | 'vflow' = 'cflow'): ModelFile {
  return {
    container,
    dtype: 'q4_0',
    config,
    metadata: {
      config,
      source: { name: 'none', files: [] },
      converter: { version: '0.1.0', options: {} },
      checksums: {},
    },
    layout: planLayout(config, 'q4_0', container, 1000),
    streams: new Map(),
  };
}

describe('report', () => {
  test.each([
    ['arch1', 9, 9],
    ['arch2_4', 9, 4.5],
    ['arch5', 14.0625, 14.0625],
  ])('%s has the critical path of the published table', (name, naive, critical) => {
    const { nominal } = describeFile(planned(PRESETS[name]!), 'x').criticalPath;
    expect([nominal.naive / 2 ** 20, nominal.critical / 2 ** 20]).toEqual([naive, critical]);
  });

  test.each([
    ['pre', 'pre norm: before attention, before FFN'],
    ['post', 'post norm: after attention, after FFN'],
    ['sandwich', 'sandwich norm: before attention, after attention, before FFN, after FFN'],
  ] as const)('sequential layers say that they have %s norms', (norms, words) => {
    const sequential = { combineStyle: 'sequential', denseDelay: 0, expertDelay: 0 } as const;
    const layers = tinyConfig().layers.map((layer) => ({ ...layer, norms }));
    const { combine } = describeFile(planned(tinyConfig({ ...sequential, layers })), 'x').model;
    expect(combine).toBe(`attention, then FFN or experts, each added to the residual; ${words}`);
    const [first] = layers;
    const mixed = tinyConfig({ ...sequential, layers: [tinyConfig().layers[0]!, first!, first!] });
    const both = describeFile(planned(mixed), 'x').model.combine.split('; ').slice(1);
    expect(both).toEqual(
      norms === 'pre' ? [words] : ['pre norm: before attention, before FFN', `or ${words}`],
    );
  });

  test('arch2_4 has its parameters, and sizes that add up to the file', () => {
    const report = describeFile(planned(PRESETS.arch2_4!), 'x');
    expect(report.model.parameters).toBe(114_408_960);
    expect(report.sizes.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(report.file.bytes);
    expect(report.sizes.reduce((sum, { regions }) => sum + regions, 0)).toBe(report.file.regions);
    // 8 experts of 3 matrices of 512 x 512 in 8 full tiles of 18,448 bytes, in 6 layers.
    expect(report.sizes.find(({ kind }) => kind === 'experts')!.bytes).toBe(6 * 8 * 3 * 8 * 18_448);
  });

  test.each(Object.keys(PRESETS).flatMap((name) => [[name, 'cflow'] as const, [name, 'vflow'] as const]))(
    '%s as %s is a valid report within 100 columns',
    (name, container) => {
      const report = describeFile(planned(PRESETS[name]!, container), 'x');
      inspectReportSchema.parse(JSON.parse(JSON.stringify(report)));
      const text = render(report, ['summary', 'layers', 'experts', 'criticalPath']);
      expect(text.split('\n').filter((line) => [...line].length > 100)).toEqual([]);
      expect(text).toContain(name);
    },
  );

  test('the layout map of a large model is folded', () => {
    const text = render(describeFile(planned(PRESETS.arch2_4_8k_16l!), 'x'), ['summary']);
    const map = text.slice(text.indexOf('        offset'), text.indexOf('\n\ncritical'));
    expect(map).toMatchInlineSnapshot(`
      "        offset       size  regions
                   0    2.16 kB  header, metadata, layer table
               4,096    2.42 GB  attention 0, dense 0-1, router 0, table 0, experts 0-2 (24)
       2,418,384,896   13.76 GB  13 x attention 1-13, dense 2-14, router 1-13, table 1-13, experts 3-15 (8
                                 each)
      16,175,165,440  755.99 MB  attention 14, dense 15, router 14, table 14, attention 15
      16,931,160,064  262.27 kB  router 15, table 15
      16,931,426,304  463.61 MB  final norm, embedding, LM head"
    `);
  });

  test('layers that differ are listed once each', () => {
    const [layer] = tinyConfig().layers;
    const sliding = { ...layer!, attention: { ...layer!.attention, slidingWindow: 16 } };
    const config = tinyConfig({ layers: [sliding, sliding, layer!, sliding] });
    const { geometries } = describeFile(planned(config), 'x').model;
    expect(geometries.map(({ layers }) => layers)).toEqual([[0, 1, 3], [2]]);
    expect(geometries[0]!.text).toContain('window 16');
  });
});

describe('what is read', () => {
  test.each(['cflow', 'vflow'] as const)(
    'of a %s: the head and the expert tables alone',
    async (container) => {
      const { bytes, layout } = await buildModel(tinyConfig(), { container });
      const source = new RecordingSource(bytes);
      await inspect(source, {
        sections: ['summary', 'layers', 'experts', 'plan', 'criticalPath'],
      });
      const table = regionOf(layout, 'layer_table');
      const allowed = [
        { offset: 0, length: table.offset + table.length },
        ...layout.regions.filter(({ kind }) => kind === 'expertTable'),
      ];
      for (const { offset, length } of source.reads) {
        expect(allowed.some((a) => offset >= a.offset && offset + length <= a.offset + a.length)).toBe(true);
      }
      // The head is read once to be parsed and once to be checked, never more.
      const total = source.reads.reduce((sum, { length }) => sum + length, 0);
      expect(total).toBeLessThan(2 * (table.offset + table.length) + 2 * 4 * 16 + 512);
    },
  );

  test('--tiles reads sixteen bytes a tile more', async () => {
    const { bytes } = await buildModel(tinyConfig());
    const count = async (tiles?: number) => {
      const source = new RecordingSource(bytes);
      const request = { sections: [], ...(tiles === undefined ? {} : { tiles }) };
      const report = await inspect(source, request);
      const total = source.reads.reduce((sum, { length }) => sum + length, 0);
      return { total, tiles: report.tiles?.length ?? 0 };
    };
    const plain = await count();
    const three = await count(3);
    // Attention and dense of two layers, eight experts, embedding and LM head; the last two have one tile each.
    expect(three.tiles).toBe(3 * 12 + 2);
    expect(three.total - plain.total).toBe(16 * three.tiles);
  });
});

describe('statistics', () => {
  async function stats(dtype: 'f32' | 'q8_0' | 'q4_0', value: (tensor: string, i: number) => number) {
    const { bytes } = await buildModel(tinyConfig(), { dtype, value });
    const source = memorySource(bytes);
    const rows: StatsRow[] = [];
    for await (const row of tensorStats(source, await openModel(source))) rows.push(row);
    return new Map(rows.map((row) => [row.tensor, row]));
  }

  test('moments of 2, 4, 4, 4, 5, 5, 7, 9: mean 5, deviation 2', () => {
    const moments = new Moments();
    for (const value of [2, 4, 4, 4, 5, 5, 7, 9, Number.NaN]) moments.add(value);
    expect(moments.nonFinite).toBe(1);
    expect(moments.summary()).toEqual({ zeros: 0, min: 2, max: 9, mean: 5, std: 2 });
  });

  test('of f32 weights 0, 1, 2, 3, 0, 1, …', async () => {
    const row = (await stats('f32', (_, i) => i % 4)).get('layers.1.ffn.gate_proj.weight')!;
    expect(row).toMatchObject({ shape: [136, 40], values: 5440, zeros: 0.25, min: 0, max: 3 });
    expect(row.mean).toBeCloseTo(1.5, 12);
    expect(row.std).toBeCloseTo(Math.sqrt(1.25), 12);
    expect(row.scales).toBeUndefined();
  });

  test('scales of q8_0: the largest magnitude of each group / 127, zero for an all-zero group', async () => {
    // Rows of 40: a group of 32 with 127 in it, and one of 8, all zero.
    const row = (await stats('q8_0', (_, i) => (i % 40 < 32 ? 127 : 0))).get('lm_head.weight')!;
    expect(row.scales).toEqual({ count: 100, zeros: 0.5, min: 0, max: 1, mean: 0.5 });
    expect(row).toMatchObject({ zeros: 0.2, min: 0, max: 127, nonFinite: 0 });
  });

  test('values that are not finite are counted, not averaged', async () => {
    const row = (await stats('f32', (name, i) => (name === 'norm.weight' && i === 3 ? Number.NaN : 1))).get(
      'norm.weight',
    )!;
    expect(row).toMatchObject({ nonFinite: 1, min: 1, max: 1, mean: 1, std: 0 });
  });

  test('stop at a damaged tile header', async () => {
    const { bytes, layout } = await buildModel(tinyConfig());
    bytes[regionOf(layout, 'embedding').offset + 8] = 7;
    const source = memorySource(bytes, 'x.cflow');
    const file = await openModel(source);
    await expect(async () => {
      for await (const _ of tensorStats(source, file));
    }).rejects.toMatchObject({ code: 'FORMAT_INVALID' });
  });
});

test('text helpers', () => {
  expect(ranges([0, 1, 2, 4, 6, 7])).toBe('0-2, 4, 6-7');
  expect([short(0), short(null), short(-1.234567e-5), short(12.345), short(123456)]).toEqual([
    '0',
    '-',
    '-1.2e-5',
    '12.3',
    '1.2e+5',
  ]);
  expect(clip('abcdefghij', 5)).toBe('ab…ij');
  expect(wrap('aaa bbb ccc', 7, '  ')).toBe('aaa bbb\n  ccc');
});

describe('RoPE scaling in words', () => {
  const layer = tinyConfig().layers[0]!;
  const scaled = (scaling: object) =>
    geometryInWords({
      ...layer,
      attention: { ...layer.attention, rope: { theta: 1e6, rotaryDim: 8, scaling } },
    } as never);

  test.each([
    [{ type: 'linear', factor: 8 }, 'RoPE 1,000,000 scaled by 8 (linear)'],
    [
      { type: 'yarn', factor: 4, originalContextLength: 32_768, betaFast: 32, betaSlow: 1, truncate: true },
      'RoPE 1,000,000 scaled by 4 from 32,768 positions (yarn)',
    ],
  ])('%o', (scaling, words) => {
    expect(scaled(scaling)).toContain(words);
  });
});
