import { type ModelShape, makeConfig } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import {
  buildPlan,
  type Container,
  DTYPE_NAMES,
  firstAsked,
  groupDescriptors,
  type Layout,
  MAX_STREAMS,
  type ModelConfig,
  modelStreams,
  PRESETS,
  parameterCount,
  planLayout,
  regionOf,
} from '../src/index.js';

const CONTAINERS: Container[] = ['cflow', 'vflow'];

/** Delays 0 … 3 each way, one to seven layers, dense, experts and both. */
const GRID: [string, ModelConfig][] = [0, 1, 2, 3].flatMap((denseDelay) =>
  [0, 1, 2, 3].flatMap((expertDelay) =>
    [1, 2, 3, 4, 5, 6, 7].flatMap((layers) =>
      ([{ experts: 0 }, { ffn: false }, {}] as ModelShape[]).map((kind): [string, ModelConfig] => [
        `δd ${denseDelay}, δe ${expertDelay}, ${layers} layers, ${JSON.stringify(kind)}`,
        makeConfig({ ...kind, denseDelay, expertDelay, layers }),
      ]),
    ),
  ),
);
const SPECIAL: [string, ModelConfig][] = [
  ['tied, ragged', makeConfig({ tied: true, hiddenDim: 257, vocabSize: 129 })],
  ['sliding', makeConfig({ layers: 7, slidingEvery: 3, denseDelay: 1, expertDelay: 2 })],
  ['every optional tensor', makeConfig({ layers: 3, rich: true })],
];
const MODELS: [string, ModelConfig][] = [...Object.entries(PRESETS), ...GRID, ...SPECIAL];
const streamNames = ({ regions }: Layout) => regions.filter((r) => r.stream).map((r) => r.name);

/** Faults of coverage, alignment and completeness, found without the code that lays out. */
function faults(layout: Layout, config: ModelConfig): string[] {
  const found: string[] = [];
  let end = 0;
  for (const { name, kind, offset, length } of layout.regions) {
    if (offset !== end) found.push(`${name} at ${offset}, not ${end}`);
    if (length <= 0) found.push(`${name} is empty`);
    if (kind === 'stream' && offset % 4096) found.push(`${name} at ${offset}`);
    if (kind.endsWith('Table') && offset % 8) found.push(`${name} at ${offset}`);
    if (kind === 'padding' && length >= 4096) found.push(`${name} has ${length}`);
    end = offset + length;
  }
  if (end !== layout.fileBytes) found.push(`${end} of ${layout.fileBytes} bytes`);
  const names = layout.regions.map(({ name }) => name);
  if (new Set(names).size !== names.length) found.push('a name occurs twice');
  const wanted = modelStreams(config).map(({ name }) => name);
  if (streamNames(layout).sort().join() !== wanted.sort().join()) found.push('streams differ');
  return found;
}

describe('every byte belongs to exactly one named region', () => {
  it.each(MODELS)('%s', (_, config) => {
    for (const container of CONTAINERS) {
      for (const metadataBytes of [0, 1, 5_003]) {
        const layout = planLayout(config, 'q4_0', container, metadataBytes);
        expect(faults(layout, config)).toEqual([]);
      }
    }
  });

  it.each(DTYPE_NAMES)('%s', (dtype) => {
    const config = makeConfig({ layers: 3, rich: true });
    for (const container of CONTAINERS) {
      expect(faults(planLayout(config, dtype, container, 100), config)).toEqual([]);
    }
  });
});

describe('.cflow: streams lie in the order in which the plan first asks for them', () => {
  it.each(MODELS)('%s', (_, config) => {
    const asked = firstAsked(buildPlan(config, { transfers: 'overlap' })).filter(
      (name) => !name.includes('.experts.'),
    );
    const set = new Set(asked);
    expect(set.size).toBe(asked.length);
    const file = streamNames(planLayout(config, 'q4_0', 'cflow', 100));
    expect(file.filter((name) => set.has(name))).toEqual(asked);
    // Never asked for as a whole: experts, the embedding's rows, and a dense stream that no layer lives to use.
    const rest = file.filter((name) => !set.has(name) && !name.includes('.experts.'));
    const unused = Array.from({ length: config.denseDelay }, (_, layer) => `layers.${layer}.dense`);
    expect(rest.filter((name) => name !== 'embedding' && !unused.includes(name))).toEqual([]);
  });

  it('places by slots as worked out by hand: δd 1, δe 2, four layers', () => {
    const config = makeConfig({ layers: 4, denseDelay: 1, expertDelay: 2, experts: 2 });
    const short = streamNames(planLayout(config, 'q4_0', 'cflow', 0)).map((name) =>
      name
        .replace('layers.', '')
        .replace('.experts.', 'e')
        .replace(/\.(.).*/, '$1'),
    );
    const slots = [
      '0a 0d 1d 0r 0e0 0e1 1e0 1e1 2e0 2e1',
      '1a 2d 1r 3e0 3e1',
      '2a 3d 2r',
      '3a 3r',
      'final_norm embedding lm_head',
    ];
    expect(short.join(' ')).toBe(slots.join(' '));
  });
});

describe('.vflow: stage by stage', () => {
  it('groups consecutive layers of one geometry; tables, then experts, then the vocabulary', () => {
    const config = makeConfig({ layers: 4, slidingEvery: 3, experts: 2 });
    const layout = planLayout(config, 'q4_0', 'vflow', 10);
    expect(layout.groups).toEqual([
      { firstLayer: 0, layerCount: 2 },
      { firstLayer: 2, layerCount: 1 },
      { firstLayer: 3, layerCount: 1 },
    ]);
    const names = layout.regions.filter(({ kind }) => kind !== 'padding').map(({ name }) => name);
    const stage = (...layers: number[]) => [
      ...layers.map((l) => `layers.${l}.attention`),
      ...layers.flatMap((l) => [`layers.${l}.dense`, `layers.${l}.router`]),
    ];
    const each = (suffix: string) => [0, 1, 2, 3].map((l) => `layers.${l}.${suffix}`);
    expect(names).toEqual([
      ...['header', 'metadata', 'group_table', 'layer_table'],
      ...[...stage(0, 1), ...stage(2), ...stage(3)],
      ...each('expert_table'),
      ...[0, 1, 2, 3].flatMap((l) => [`layers.${l}.experts.0`, `layers.${l}.experts.1`]),
      ...['final_norm', 'embedding', 'lm_head'],
    ]);
  });
});

describe('sizes of the models of the report', () => {
  const bytes = (name: string) => planLayout(PRESETS[name]!, 'q4_0', 'cflow', 2_000).fileBytes;

  it('parameters', () => {
    expect(parameterCount(PRESETS.arch2_4!)).toBe(114_408_960);
    expect(parameterCount(PRESETS.arch2_4_8k_4l!)).toBe(8_339_939_328);
    expect(parameterCount(PRESETS.arch2_4_8k_16l!) / 1e9).toBeCloseTo(30.9, 1);
  });

  it('files', () => {
    expect(bytes('arch2_4') / 1e6).toBeCloseTo(64.4, 0);
    expect(bytes('arch2_4_8k_4l') / 1e9).toBeCloseTo(4.7, 2);
    // 17.395 GB, which the report cuts to 17.39.
    expect(Math.floor(bytes('arch2_4_8k_16l') / 1e7)).toBe(1_739);
  });

  it('a stream worked out by hand: the attention of arch2_4', () => {
    // A norm of 512 floats, then Q, K, V, O of [512, 512]: 4 × 2 full tiles each.
    const region = regionOf(planLayout(PRESETS.arch2_4!, 'q4_0', 'cflow', 0), 'layers.0.attention');
    expect(region.length).toBe(4 * 512 + 4 * 8 * 18_448);
  });
});

describe('limits', () => {
  it('refuses more streams than a reader builds', () => {
    const config = makeConfig({ experts: 255 });
    const layers = Array.from({ length: 1_100 }, () => config.layers[0]!);
    expect(() => planLayout({ ...config, layers }, 'q4_0', 'cflow', 0)).toThrowError(
      expect.objectContaining({
        code: 'LIMIT_EXCEEDED',
        message: `config.layers: 283803 streams, the limit is ${MAX_STREAMS}`,
      }),
    );
  });

  it('describes a group of as many layers as there can be', () => {
    const config = makeConfig();
    const experts = { ...config.layers[0]!.experts!, count: 1, topK: 1 };
    const layers = Array.from({ length: 65_000 }, () => ({ ...config.layers[0]!, experts }));
    const [group, ...rest] = groupDescriptors(planLayout({ ...config, layers }, 'q4_0', 'vflow', 0));
    expect([group?.first_layer, group?.layer_count, rest]).toEqual([0, 65_000, []]);
  });

  it('regionOf names what is missing', () => {
    expect(() => regionOf(planLayout(makeConfig(), 'q4_0', 'cflow', 0), 'x')).toThrow('no region x');
  });
});
