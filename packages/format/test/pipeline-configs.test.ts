/** The config.json files that pipeline_native exports, against the schema and the presets of the report's models. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { type ModelConfig, modelConfigSchema, PRESETS, parseModelConfig } from '../src/index.js';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
const FOLDERS = ['models', 'packages/runtime-native/test/golden'];

interface Exported {
  readonly directory: string;
  readonly arch: string;
  readonly json: Record<string, unknown>;
}

/** Every exported config below `FOLDERS`; its directory's name ends in the architecture's. */
const EXPORTED: Exported[] = FOLDERS.flatMap((folder) =>
  readdirSync(`${ROOT}/${folder}`)
    .map((name) => `${folder}/${name}`)
    .filter((directory) => existsSync(`${ROOT}/${directory}/config.json`)),
)
  .map((directory) => {
    const { model_type, ...json } = JSON.parse(readFileSync(`${ROOT}/${directory}/config.json`, 'utf8'));
    const arch = /(?:arch[1345]|arch2_4(?:_sync)?|parallel_sqrt2)$/.exec(directory)?.[0] ?? '';
    return { directory, arch, json, ours: model_type === 'cflow' };
  })
  .filter(({ ours }) => ours);

const named = (prefix: string) => EXPORTED.filter(({ directory }) => directory.includes(prefix));
const parse = ({ json, directory }: Exported) => parseModelConfig(json, `${directory}/config.json`);

/** What makes an architecture, whatever its width. */
const wiring = ({
  combineStyle,
  denseDelay,
  expertDelay,
  mergeInterval,
  iterations,
  layers,
}: ModelConfig) => ({
  combineStyle,
  denseDelay,
  expertDelay,
  mergeInterval,
  iterations,
  ffn: new Set(layers.map(({ ffn }) => ffn?.activation)),
  routed: new Set(layers.map(({ experts }) => experts && `${experts.activation} ${experts.normalizeTopK}`)),
});

/** Widths over the hidden width, and the experts of a token, layer by layer. */
const ratios = ({ hiddenDim, layers }: ModelConfig) =>
  layers.map(({ attention, ffn, experts }) => ({
    heads: (attention.heads * attention.headDim) / hiddenDim,
    rotary: (attention.rope?.rotaryDim ?? 0) / attention.headDim,
    ffn: (ffn?.dim ?? 0) / hiddenDim,
    experts: experts && [experts.count, experts.topK, experts.dim / hiddenDim],
  }));

describe('configs that pipeline_native exports', () => {
  it('are those of every architecture, and a bundled model', () => {
    const archs = new Set(named('golden/').map(({ arch }) => arch));
    expect([...archs].sort()).toEqual([
      'arch1',
      'arch2_4',
      'arch2_4_sync',
      'arch3',
      'arch4',
      'arch5',
      'parallel_sqrt2',
    ]);
    expect(named('models/').map(({ arch }) => arch)).toEqual(['arch2_4']);
  });

  it.each(EXPORTED)('$directory is valid and leaves nothing to defaults', (exported) => {
    const { json } = exported;
    expect(parse(exported)).toEqual(json);
    expect(modelConfigSchema.safeParse({ ...json, unknown: 1 }).success).toBe(false);
  });

  it.each(EXPORTED.filter(({ arch }) => arch in PRESETS))('$directory is wired like $arch', (exported) => {
    expect(wiring(parse(exported))).toEqual(wiring(PRESETS[exported.arch]!));
  });

  it.each(EXPORTED.filter(({ arch }) => arch in PRESETS))('$directory is as deep as $arch', (exported) => {
    expect(parse(exported).layers).toHaveLength(PRESETS[exported.arch]!.layers.length);
  });

  it('wires parallel_sqrt2, which is no preset, without delays', () => {
    const [golden] = EXPORTED.filter(({ arch }) => arch === 'parallel_sqrt2');
    expect(parse(golden!)).toMatchObject({ combineStyle: 'parallelSqrt2', denseDelay: 0, expertDelay: 0 });
  });

  it.each(named('models/'))("$directory has the report's proportions", (exported) => {
    const own = ratios(parse(exported));
    expect(own).toEqual(own.map(() => ratios(PRESETS[exported.arch]!)[0]));
  });
});
