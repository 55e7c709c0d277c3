import { describe, expect, it } from 'vitest';
import { type ModelConfigInput, parseModelConfig } from '../src/model/config.js';
import { PRESETS } from '../src/model/presets.js';

const BASE = PRESETS.arch2_4!;

/** The message that a change of the preset arch2_4 is refused with. */
function refusal(change: Partial<ModelConfigInput>): string {
  try {
    parseModelConfig({ ...BASE, ...change }, 'config.json');
  } catch (error) {
    return (error as Error).message;
  }
  throw new Error('the config was accepted');
}

function withAttention(change: object): Partial<ModelConfigInput> {
  const [first, ...rest] = BASE.layers;
  return { layers: [{ ...first!, attention: { ...first!.attention, ...change } }, ...rest] };
}

const llama3 = { type: 'llama3', factor: 8, originalContextLength: 8192 };

describe('a contradictory config is refused with its field', () => {
  it.each<[string, Partial<ModelConfigInput>, string]>([
    ['bos outside', { bosTokenId: 60_000 }, 'bosTokenId: token id 60000 is outside vocabSize 50257'],
    ['eos outside', { eosTokenIds: [0, 60_000] }, 'eosTokenIds: token id 60000 is outside vocabSize 50257'],
    ['heads', withAttention({ kvHeads: 3 }), '8 query heads are not a multiple of 3 key/value heads'],
    [
      'columns',
      withAttention({ headDim: 140_000 }),
      'heads × headDim = 1120000 is over the limit of 1048576',
    ],
    ['odd rotary', withAttention({ rope: { theta: 1e4, rotaryDim: 7 } }), 'rotaryDim 7 must be even'],
    [
      'llama3 factors',
      withAttention({
        rope: { theta: 1e4, rotaryDim: 64, scaling: { ...llama3, lowFreqFactor: 4, highFreqFactor: 4 } },
      }),
      'rope.scaling.highFreqFactor: highFreqFactor 4 must be more than lowFreqFactor 4',
    ],
    ['delays of sequential', { combineStyle: 'sequential' }, 'sequential layers have no delays'],
    ['merge interval', { mergeInterval: 3 }, 'mergeInterval belongs to decoupledStreams'],
    ['iterations', { iterations: 3 }, 'iterations belong to fixedPoint'],
    ['experts of registers', { combineStyle: 'pipelineRegisters' }, 'dense layers without delays only'],
    ['no layers', { layers: [] }, 'layers: '],
    ['norms', { layers: [{ ...BASE.layers[0]!, norms: 'post' }] }, 'outputScale need sequential'],
    ['keys of itself', withAttention({ kvFrom: 0 }), 'layer 0 is not an earlier sequential layer'],
    ['layer inputs', { perLayerInput: { dim: 4 } }, 'perLayerInput needs sequential layers'],
    ['layer inputs too wide', { perLayerInput: { dim: 200_000 } }, '200000 × 6 layers are over the limit'],
    [
      'proportional pairs',
      withAttention({
        rope: { theta: 1e4, rotaryDim: 64, scaling: { type: 'proportional', pairs: 33, factor: 1 } },
      }),
      '33 pairs are more than rotaryDim 64 has',
    ],
  ])('%s', (_, change, message) => {
    expect(refusal(change)).toContain('config.json: not a valid model configuration: ');
    expect(refusal(change)).toContain(message);
  });

  it('names unknown keys', () => {
    expect(refusal({ hidden_size: 3 } as Partial<ModelConfigInput>)).toContain('hidden_size');
  });
});
