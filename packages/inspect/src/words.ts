/** What the numbers of a config mean, in words. */

import {
  type CombineStyle,
  type LayerConfig,
  type ModelConfig,
  type NormPlaces,
  type NormStyle,
  normPlaces,
  type RopeConfig,
} from '@cflow/format';
import { count } from '#cli-kit/text.js';

const COMBINE: Record<CombineStyle, (config: ModelConfig) => string> = {
  parallelSqrt2: () => 'FFN and expert outputs are added and divided by √2',
  delayedSum: () => 'FFN and expert outputs are added; the router reads the state after attention',
  asyncExperts: () => 'FFN and expert outputs are added; FFN and router both read the input of the layer',
  sequential: (config) =>
    `attention, then FFN or experts, each added to the residual; ${normsInWords(config)}`,
  decoupledStreams: ({ mergeInterval }) =>
    `attention and FFN run as two streams that merge every ${mergeInterval} layers`,
  pipelineRegisters: () => 'attention and FFN work on two registers that pass from layer to layer',
  fixedPoint: ({ iterations }) => `each block of weights is iterated ${iterations} times`,
};

const PLACES: Record<keyof NormPlaces, string> = {
  attnIn: 'before attention',
  attnOut: 'after attention',
  ffnIn: 'before FFN',
  ffnOut: 'after FFN',
};

/** `post norm: after attention, after FFN`; of layers that differ, every style that there is. */
function normsInWords({ layers }: ModelConfig): string {
  const styles = new Map<NormStyle, NormPlaces>(layers.map((l) => [l.norms ?? 'pre', normPlaces(l)]));
  const words = [...styles].map(([style, places]) => {
    const normed = Object.entries(PLACES).filter(([place]) => places[place as keyof NormPlaces]);
    return `${style} norm: ${normed.map(([, text]) => text).join(', ')}`;
  });
  return words.join('; or ');
}

export function combineInWords(config: ModelConfig): string {
  return COMBINE[config.combineStyle](config);
}

export function denseDelayInWords({ denseDelay: n }: ModelConfig): string {
  return n ? `${n}: the FFN of layer l reads the output of layer l - ${n}` : '0: none';
}

export function expertDelayInWords({ expertDelay: n, layers }: ModelConfig): string {
  if (!layers.some(({ experts }) => experts)) return '0: no experts';
  return n
    ? `${n}: experts chosen in layer l are added in layer l + ${n}, at the latest in the last`
    : '0: none';
}

function ropeInWords({ theta, scaling }: RopeConfig): string {
  const rope = `RoPE ${count(theta)}`;
  if (!scaling) return rope;
  const factor = 'factor' in scaling ? ` by ${count(scaling.factor)}` : '';
  const from =
    'originalContextLength' in scaling ? ` from ${count(scaling.originalContextLength)} positions` : '';
  return `${rope} scaled${factor}${from} (${scaling.type})`;
}

/** One line about a layer: attention, then FFN, then experts. */
export function geometryInWords({ attention: a, ffn, experts }: LayerConfig): string {
  const parts = [
    `${a.heads} heads`,
    ...(a.kvHeads === a.heads ? [] : [`${a.kvHeads} kv`]),
    `head dim ${a.headDim}`,
    a.slidingWindow ? `window ${count(a.slidingWindow)}` : 'full',
    ...(a.rope ? [ropeInWords(a.rope)] : ['no RoPE']),
    ...(a.qkNorm === 'none' ? [] : [`q/k norm per ${a.qkNorm}`]),
    ...(a.vNorm ? ['v norm'] : []),
    ...(a.clipQkv ? [`q/k/v clipped to ±${a.clipQkv}`] : []),
    ...(a.biasQkv ? ['qkv bias'] : []),
  ];
  const rest = [
    ...(ffn ? [`FFN ${count(ffn.dim)} ${ffn.activation}`] : []),
    ...(experts
      ? [`${experts.count} experts of ${count(experts.dim)} ${experts.activation}, top ${experts.topK}`]
      : []),
  ];
  return [parts.join(', '), ...rest].join('; ');
}
