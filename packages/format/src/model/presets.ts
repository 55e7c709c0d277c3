/** The report's models (report §4.3, §5.2.1, Table 4.1) and its Gemma 4 sizing geometry (report §6.1), by name. */
import { type ModelConfig, type ModelConfigInput, parseModelConfig } from './config.js';
import type { PRESET_NAMES } from './preset-names.js';

const ROPE_THETA = 10_000;
const NORM_EPS = 1e-6;
const GPT2_VOCAB = 50_257;
const GEMMA_VOCAB = 262_144;

interface Geometry {
  hiddenDim: number;
  heads: number;
  headDim: number;
  ffnDim: number;
  experts?: { count: number; topK: number; dim: number };
}

const SCREENING: Geometry = { hiddenDim: 512, heads: 8, headDim: 64, ffnDim: 2048 };
const SCREENING_MOE: Geometry = { ...SCREENING, experts: { count: 8, topK: 2, dim: 512 } };
const SHARED: Geometry = { hiddenDim: 640, heads: 8, headDim: 80, ffnDim: 2560 };
const LARGE_MOE: Geometry = {
  hiddenDim: 8192,
  heads: 64,
  headDim: 128,
  ffnDim: 32_768,
  experts: { count: 8, topK: 2, dim: 4096 },
};
/** 11 heads of 256 make attention 4·d² weights, as the report sizes it (Eq. 6.1); the released model has 16 heads. */
const GEMMA4: Geometry = {
  hiddenDim: 2816,
  heads: 11,
  headDim: 256,
  ffnDim: 2112,
  experts: { count: 128, topK: 8, dim: 704 },
};

function layerOf({ heads, headDim, ffnDim, experts }: Geometry): ModelConfigInput['layers'][number] {
  return {
    attention: {
      heads,
      kvHeads: heads,
      headDim,
      rope: { theta: ROPE_THETA, rotaryDim: headDim },
      scale: 1 / Math.sqrt(headDim),
    },
    ffn: { dim: ffnDim, activation: 'gelu' },
    ...(experts && { experts: { ...experts, activation: 'gelu' } }),
  };
}

type Style = Pick<
  ModelConfigInput,
  | 'combineStyle'
  | 'denseDelay'
  | 'expertDelay'
  | 'mergeInterval'
  | 'iterations'
  | 'vocabSize'
  | 'tiedEmbeddings'
>;

function preset(
  name: (typeof PRESET_NAMES)[number],
  geometry: Geometry,
  layers: number,
  style: Style,
): [string, ModelConfig] {
  const config = parseModelConfig({
    name,
    family: 'cflow',
    hiddenDim: geometry.hiddenDim,
    contextLength: 512,
    normEps: NORM_EPS,
    ...style,
    layers: Array.from({ length: layers }, () => layerOf(geometry)),
  });
  return [name, config];
}

const vocabSize = GPT2_VOCAB;
const COMBINED: Style = { combineStyle: 'delayedSum', denseDelay: 1, expertDelay: 2, vocabSize };

/** The models of the report by name. */
export const PRESETS: Record<string, ModelConfig> = Object.fromEntries([
  preset('arch1', SCREENING, 6, { combineStyle: 'decoupledStreams', mergeInterval: 3, vocabSize }),
  preset('arch2_4', SCREENING_MOE, 6, COMBINED),
  preset('arch2_4_sync', SCREENING_MOE, 6, { ...COMBINED, expertDelay: 0 }),
  preset('arch3', SCREENING, 6, { combineStyle: 'pipelineRegisters', vocabSize }),
  preset('arch4', SCREENING_MOE, 6, { combineStyle: 'asyncExperts', expertDelay: 2, vocabSize }),
  preset('arch5', SHARED, 2, { combineStyle: 'fixedPoint', iterations: 3, vocabSize }),
  preset('arch2_4_8k_4l', LARGE_MOE, 4, COMBINED),
  preset('arch2_4_8k_16l', LARGE_MOE, 16, COMBINED),
  preset('gemma4_sizing', GEMMA4, 30, { ...COMBINED, vocabSize: GEMMA_VOCAB, tiedEmbeddings: true }),
]);
