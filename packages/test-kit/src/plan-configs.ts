/** Small configurations for plan tests: every residual style with a grid of delays and layer contents. */
import { type ModelConfig, type ModelConfigInput, parseModelConfig } from '@cflow/format';

export type Content = 'dense' | 'experts' | 'both';

export function tiny(contents: readonly Content[], overrides: Partial<ModelConfigInput>): ModelConfig {
  const ffn = { dim: 48, activation: 'gelu' } as const;
  const experts = { count: 4, topK: 2, dim: 16, activation: 'gelu' } as const;
  return parseModelConfig({
    name: 'tiny',
    family: 'cflow',
    hiddenDim: 32,
    vocabSize: 64,
    contextLength: 16,
    normEps: 1e-6,
    combineStyle: 'delayedSum',
    layers: contents.map((content) => ({
      attention: { heads: 4, kvHeads: 2, headDim: 8, rope: { theta: 1e4, rotaryDim: 8 }, scale: 0.35 },
      ...(content !== 'experts' && { ffn }),
      ...(content !== 'dense' && { experts }),
    })),
    ...overrides,
  });
}

const CONTENTS: Record<string, Content[]> = {
  both: ['both', 'both', 'both', 'both', 'both', 'both'],
  experts: ['experts', 'experts', 'experts', 'experts'],
  dense: ['dense', 'dense', 'dense', 'dense'],
  mixed: ['dense', 'both', 'experts', 'both', 'both', 'dense', 'both'],
  one: ['both'],
};

/** [name, config] over styles, delays 0 to 4 (more than some models have layers) and layer contents. */
export const GRID: [string, ModelConfig][] = (
  ['parallelSqrt2', 'delayedSum', 'asyncExperts'] as const
).flatMap((combineStyle) =>
  Object.entries(CONTENTS).flatMap(([name, contents]) =>
    [0, 1, 2, 3, 4].flatMap((denseDelay) =>
      [0, 1, 2, 4].map((expertDelay): [string, ModelConfig] => [
        `${combineStyle} ${name} δd ${denseDelay} δe ${expertDelay}`,
        tiny(contents, { combineStyle, denseDelay, expertDelay }),
      ]),
    ),
  ),
);

const dense = (n: number): Content[] => Array.from({ length: n }, () => 'dense');
export const OTHERS: [string, ModelConfig][] = [
  [
    'sequential both',
    tiny(['both', 'dense', 'experts'], { combineStyle: 'sequential', tiedEmbeddings: true }),
  ],
  ['decoupled 6/3', tiny(dense(6), { combineStyle: 'decoupledStreams', mergeInterval: 3 })],
  ['decoupled 9/9', tiny(dense(9), { combineStyle: 'decoupledStreams', mergeInterval: 9 })],
  ['decoupled 2/1', tiny(dense(2), { combineStyle: 'decoupledStreams', mergeInterval: 1 })],
  ['registers', tiny(dense(5), { combineStyle: 'pipelineRegisters' })],
  ['fixed point 2x3', tiny(dense(2), { combineStyle: 'fixedPoint', iterations: 3 })],
  ['fixed point 3x1', tiny(dense(3), { combineStyle: 'fixedPoint', iterations: 1 })],
];
