/** The parts of a layer as steps: attention, dense FFN, routed experts, and the head of the model. */
import {
  type AttentionConfig,
  type ExpertsConfig,
  type FfnConfig,
  type LayerConfig,
  normPlaces,
} from '../model/config.js';
import { streamName } from '../model/streams.js';
import type { PlanBuilder } from './phases.js';
import type { WeightRef } from './types.js';

export const ref = (stream: string, tensor: string): WeightRef => ({ stream, tensor });

/** Embedding of the token into `out`. */
export function emitEmbedding(b: PlanBuilder, out: string): void {
  const scale = b.config.scaleEmbeddings ? Math.sqrt(b.config.hiddenDim) : 1;
  b.emit({
    op: 'embed',
    weight: ref(streamName.embedding(), 'embed_tokens.weight'),
    scale,
    out: b.buffer(out),
  });
}

/** Adds `terms` (times `coefficients`, all ones by default) into `out`, times `scale`; returns the phase. */
export function emitSum(
  b: PlanBuilder,
  terms: readonly string[],
  out: string,
  coefficients: readonly number[] = terms.map(() => 1),
  scale?: WeightRef,
) {
  return b.emit({ op: 'sum', terms, coefficients, ...(scale && { scale }), out: b.buffer(out) });
}

/**
 * attnOut = Attn(attn_norm(input)) (Eq. 4.9), normed again where the layer says so; opens the slot of the next effective layer and a cache of its own.
 * @param layer stored layer whose weights are read
 * @returns the buffer of the attention output, [hiddenDim]
 */
export function emitAttention(b: PlanBuilder, layer: number, input: string): string {
  const layerConfig = b.config.layers[layer]!;
  const { attention: a } = layerConfig;
  const stream = streamName.attention(layer);
  const shared = a.kvFrom === undefined ? undefined : b.caches.find((own) => own.layer === a.kvFrom)!;
  const cache = shared?.cache ?? b.caches.length;
  const width = a.kvHeads * a.headDim;
  const weight = (name: string) => ref(stream, `layers.${layer}.attn.${name}`);
  if (!shared) b.caches.push({ cache, layer, width, ...(a.slidingWindow && { window: a.slidingWindow }) });
  const { attnIn, attnOut } = normPlaces(layerConfig);
  const normed = attnIn ? b.buffer('attnIn') : input;
  if (attnIn) b.slots.push(emitNorm(b, input, ref(stream, `layers.${layer}.attn_norm.weight`), normed));
  const qkv = { q: b.buffer('q', a.heads * a.headDim), k: b.buffer('k', width), v: b.buffer('v', width) };
  const names = (['q', 'k', 'v'] as const).filter(
    (name) => name === 'q' || (!shared && (name === 'k' || !a.valueFromKey)),
  );
  const phase = b.emit({
    op: 'matvec',
    input: normed,
    weights: names.map((name) => weight(`${name}_proj.weight`)),
    ...(a.biasQkv && { biases: names.map((name) => weight(`${name}_proj.bias`)) }),
    outs: names.map((name) => qkv[name]),
  });
  if (!attnIn) b.slots.push(phase);
  emitHeadSteps(b, a, shared ? ['q'] : ['q', 'k'], qkv, weight);
  if (!shared) b.emit({ op: 'cacheAppend', cache, k: qkv.k, v: qkv.v });
  const heads = emitAttend(b, a, cache, qkv.q);
  const out = b.buffer('attnOut');
  const biases = a.biasOut && { biases: [weight('o_proj.bias')] };
  b.emit({ op: 'matvec', input: heads, weights: [weight('o_proj.weight')], ...biases, outs: [out] });
  if (attnOut) emitNorm(b, out, ref(stream, `layers.${layer}.attn_post_norm.weight`), out);
  return out;
}

/** Values out of keys, q/k norms, V-norm and RoPE, in place; `rows` are q alone where keys are another layer's. */
function emitHeadSteps(
  b: PlanBuilder,
  a: AttentionConfig,
  rows: readonly ('q' | 'k')[],
  qkv: { q: string; k: string; v: string },
  weight: (name: string) => WeightRef,
): void {
  const eps = b.config.normEps;
  const { headDim, rope } = a;
  const ownValues = rows.includes('k');
  if (ownValues && a.valueFromKey) emitValues(b, a, qkv.k, qkv.v);
  if (a.qkNorm !== 'none') {
    for (const name of rows) {
      const groupSize = a.qkNorm === 'head' ? headDim : b.buffers.get(qkv[name])!.length;
      const buffers = { input: qkv[name], out: qkv[name] };
      b.emit({ op: 'rmsNorm', weight: weight(`${name}_norm.weight`), groupSize, eps, ...buffers });
    }
  }
  if (ownValues && !a.valueFromKey && a.vNorm) emitValues(b, a, qkv.v, qkv.v);
  if (rope) for (const name of rows) b.emit({ op: 'rope', buffer: qkv[name], headDim, rope });
}

/** out = `from` as values: normed without a weight where the layer says so. */
function emitValues(b: PlanBuilder, { vNorm, headDim }: AttentionConfig, from: string, out: string): void {
  if (!vNorm) emitSum(b, [from], out);
  else b.emit({ op: 'rmsNorm', input: from, groupSize: headDim, eps: b.config.normEps, out });
}

function emitAttend(b: PlanBuilder, a: AttentionConfig, cache: number, q: string): string {
  const { heads, kvHeads, headDim, scale } = a;
  const out = b.buffer('attnHeads', heads * headDim);
  b.emit({
    op: 'attend',
    cache,
    q,
    out,
    heads,
    kvHeads,
    headDim,
    scale,
    ...(a.softcap && { softcap: a.softcap }),
    ...(a.slidingWindow && { slidingWindow: a.slidingWindow }),
  });
  return out;
}

/** out = norm(input) over the residual's width, by `weight`; returns the phase. */
export function emitNorm(
  b: PlanBuilder,
  input: string,
  weight: WeightRef,
  out: string,
  notBefore = 0,
): number {
  const { hiddenDim: groupSize, normEps: eps } = b.config;
  return b.emit({ op: 'rmsNorm', input, weight, groupSize, eps, out: b.buffer(out) }, notBefore);
}

/** out = ffn_norm(input). FFN and experts share the weight, which stands in the dense stream where there is one. */
export function emitFfnNorm(
  b: PlanBuilder,
  layer: number,
  input: string,
  out: string,
  notBefore: number,
): string {
  emitNorm(b, input, ref(ffnHolder(b, layer), `layers.${layer}.ffn_norm.weight`), out, notBefore);
  return out;
}

/** The stream that holds what FFN and experts of a layer share. */
export function ffnHolder(b: PlanBuilder, layer: number): string {
  return b.config.layers[layer]!.ffn ? streamName.dense(layer) : streamName.router(layer);
}

/** ffnOut = down(act(gate · input) · up · input); returns its buffer, [hiddenDim]. */
export function emitFfn(b: PlanBuilder, layer: number, ffn: FfnConfig, input: string): string {
  const weight = (name: string) => ref(streamName.dense(layer), `layers.${layer}.ffn.${name}`);
  const gate = b.buffer('gate', ffn.dim);
  const up = b.buffer('up', ffn.dim);
  const hidden = b.buffer('ffnHidden', ffn.dim);
  const out = b.buffer('ffnOut');
  b.emit({
    op: 'matvec',
    input,
    weights: [weight('gate_proj.weight'), weight('up_proj.weight')],
    ...(ffn.bias && { biases: [weight('gate_proj.bias'), weight('up_proj.bias')] }),
    outs: [gate, up],
  });
  b.emit({ op: 'glu', gate, up, activation: ffn.activation, out: hidden });
  const biases = ffn.bias && { biases: [weight('down_proj.bias')] };
  b.emit({ op: 'matvec', input: hidden, weights: [weight('down_proj.weight')], ...biases, outs: [out] });
  return out;
}

/**
 * Routes on `routerInput` and computes the chosen experts on `input` (Eq. 4.14, 4.15) into entry `ring` of the expert
 * queue.
 */
export function emitExperts(
  b: PlanBuilder,
  layer: number,
  experts: ExpertsConfig,
  input: string,
  ring: number,
  routerInput: string = input,
): string {
  const { count, topK, dim, activation } = experts;
  const logits = b.buffer('routerLogits', count);
  const routing = b.buffer(`routing.${ring}`, 2 * topK);
  const out = b.buffer(`expertOut.${ring}`);
  const router = (name: string) => ref(streamName.router(layer), `layers.${layer}.router.${name}`);
  const scale = experts.expertScale && { scale: router('expert_scale') };
  b.emit({ op: 'matvec', input: routerInput, weights: [router('weight')], outs: [logits] });
  b.emit({ op: 'route', logits, topK, normalize: experts.normalizeTopK, ...scale, out: routing });
  b.emitDeferrable({ op: 'experts', layer, input, routing, topK, dim, activation, out });
  return out;
}

/**
 * What the router of `layer` would choose if its input were the residual of the layer before, `mid`: the prediction of
 * report §3.9.2, from the router itself instead of the routing before it.
 */
export function emitPrediction(b: PlanBuilder, layer: number, mid: string): void {
  const { experts } = b.config.layers[layer] ?? {};
  if (!b.predicts || !experts || b.config.expertDelay > 0) return;
  const { count, topK, normalizeTopK: normalize } = experts;
  const router = (name: string) => ref(streamName.router(layer), `layers.${layer}.${name}`);
  const norm = experts.routerNorm
    ? router('router_norm.weight')
    : experts.ownNorms
      ? router('experts_norm.weight')
      : normPlaces(b.config.layers[layer]!).ffnIn
        ? ref(ffnHolder(b, layer), `layers.${layer}.ffn_norm.weight`)
        : undefined;
  const input = norm ? b.buffer('predictionInput') : mid;
  if (norm) emitNorm(b, mid, norm, input);
  const logits = b.buffer('predictionLogits', count);
  const routing = b.buffer('predictedRouting', 2 * topK);
  b.emit({ op: 'matvec', input, weights: [router('router.weight')], outs: [logits] });
  // Scales of logits or weights do not change which are the largest.
  const phase = b.emit({ op: 'route', logits, topK, normalize, out: routing });
  b.predictions.push({ layer, routing, phase });
}

/** Final norm, LM head (or the tied embedding) and soft-cap; returns the buffer of the logits, [vocabSize]. */
export function emitHead(b: PlanBuilder, residual: string): string {
  const { vocabSize, tiedEmbeddings, finalLogitSoftcap } = b.config;
  const input = b.buffer('finalNorm');
  const logits = b.buffer('logits', vocabSize);
  emitNorm(b, residual, ref(streamName.finalNorm(), 'norm.weight'), input);
  const head = tiedEmbeddings
    ? ref(streamName.embedding(), 'embed_tokens.weight')
    : ref(streamName.lmHead(), 'lm_head.weight');
  b.emit({ op: 'matvec', input, weights: [head], outs: [logits] });
  if (finalLogitSoftcap) b.emit({ op: 'softcap', buffer: logits, cap: finalLogitSoftcap });
  return logits;
}

/** The layer's dense FFN; the styles that call this are checked to have one. */
export function denseOf(layer: LayerConfig): FfnConfig {
  if (!layer.ffn) throw new Error('a dense layer without an FFN passed the configuration check');
  return layer.ffn;
}
