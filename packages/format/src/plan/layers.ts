/** The parts of a layer as steps: attention, dense FFN, routed experts; and the head of the model. */
import {
  type AttentionConfig,
  type ExpertsConfig,
  type FfnConfig,
  type LayerConfig,
  normPlaces,
} from '../model/config.js';
import { streamName } from '../model/streams.js';
import type { PlanBuilder } from './builder.js';
import type { WeightRef } from './steps.js';

export const ref = (stream: string, tensor: string): WeightRef => ({ stream, tensor });

/** out = embedding of the token. */
export function embed(b: PlanBuilder, out: string): string {
  const scale = b.config.scaleEmbeddings ? Math.sqrt(b.config.hiddenDim) : 1;
  const matrix = ref(streamName.embedding(), 'embed_tokens.weight');
  b.emit({ op: 'embed', matrix, scale, out: b.buffer(out) });
  return out;
}

/** What a sum may have besides its terms. */
interface SumOptions {
  /** One for each term; all ones by default. */
  readonly coefficients?: readonly number[];
  /** A weight of one element that multiplies the sum. */
  readonly scale?: WeightRef | undefined;
}

/** out = scale · Σ coefficients · terms. */
export function sum(b: PlanBuilder, terms: readonly string[], out: string, options: SumOptions = {}): string {
  const { coefficients = terms.map(() => 1), scale } = options;
  if (!b.buffers.has(out)) b.buffer(out);
  b.emit({ op: 'sum', terms, coefficients, ...(scale && { scale }), out });
  return out;
}

/** out = norm(x) · weight over the residual's width, not in a phase before that of step `notBefore`. */
export function norm(b: PlanBuilder, x: string, weight: WeightRef, out: string, notBefore?: number): string {
  const { hiddenDim: groupSize, normEps: eps } = b.config;
  b.emit({ op: 'rmsNorm', input: x, weight, groupSize, eps, out: b.buffer(out) }, notBefore);
  return out;
}

/**
 * m = Attn(norm(x)) (Eq. 4.9), normed again where the layer says so; opens the slot of the next effective layer, and a
 * KV cache of its own.
 * @param layer stored layer whose weights are read
 * @returns the buffer of m, [hiddenDim]
 */
export function attention(b: PlanBuilder, layer: number, x: string): string {
  const layerConfig = b.config.layers[layer]!;
  const { attention: a } = layerConfig;
  const stream = streamName.attention(layer);
  const weight = (name: string) => ref(stream, `layers.${layer}.attn.${name}`);
  const { attnIn, attnOut } = normPlaces(layerConfig);
  b.slots.push(b.steps.length);
  const input = attnIn ? norm(b, x, ref(stream, `layers.${layer}.attn_norm.weight`), b.buffer('attnIn')) : x;
  const shared = a.kvFrom === undefined ? undefined : b.caches.find((own) => own.layer === a.kvFrom)!;
  const cache = shared?.cache ?? openCache(b, layer);
  const qkv = projections(b, a, input, weight, shared !== undefined);
  prepareHeads(b, a, qkv, weight, shared !== undefined);
  if (!shared) b.emit({ op: 'append', cache, k: qkv.k, v: qkv.v });
  const { heads, kvHeads, headDim, scale, softcap, slidingWindow: window } = a;
  const attended = b.buffer('attnHeads', heads * headDim);
  const limits = { ...(softcap && { softcap }), ...(window && { window }) };
  b.emit({ op: 'attend', cache, q: qkv.q, out: attended, heads, kvHeads, headDim, scale, ...limits });
  const out = b.buffer('attnOut');
  const bias = a.biasOut && { bias: weight('o_proj.bias') };
  b.emit({ op: 'matvec', input: attended, outs: [{ out, matrix: weight('o_proj.weight'), ...bias }] });
  if (attnOut) norm(b, out, ref(stream, `layers.${layer}.attn_post_norm.weight`), out);
  return out;
}

/** A KV cache for `layer`; returns its number. */
function openCache(b: PlanBuilder, layer: number): number {
  const { kvHeads, headDim, slidingWindow: window } = b.config.layers[layer]!.attention;
  const cache = b.caches.length;
  b.caches.push({ cache, layer, width: kvHeads * headDim, ...(window && { window }) });
  return cache;
}

type Qkv = Record<'q' | 'k' | 'v', string>;
type WeightOf = (name: string) => WeightRef;

/** q, k, v = projections of x in one pass; of q alone where keys and values are another layer's. */
function projections(b: PlanBuilder, a: AttentionConfig, x: string, weight: WeightOf, shared: boolean): Qkv {
  const width = a.kvHeads * a.headDim;
  const qkv = { q: b.buffer('q', a.heads * a.headDim), k: b.buffer('k', width), v: b.buffer('v', width) };
  const own = shared ? (['q'] as const) : a.valueFromKey ? (['q', 'k'] as const) : (['q', 'k', 'v'] as const);
  const outs = own.map((name) => ({
    out: qkv[name],
    matrix: weight(`${name}_proj.weight`),
    ...(a.biasQkv && { bias: weight(`${name}_proj.bias`) }),
  }));
  b.emit({ op: 'matvec', input: x, outs });
  return qkv;
}

/** Values out of keys, q/k norms, V-norm, clipping and RoPE, in place; of q alone where keys and values are another layer's. */
function prepareHeads(b: PlanBuilder, a: AttentionConfig, qkv: Qkv, weight: WeightOf, shared: boolean): void {
  const { headDim, rope } = a;
  const eps = b.config.normEps;
  const rotated = shared ? (['q'] as const) : (['q', 'k'] as const);
  const values = (from: string) => {
    if (!a.vNorm) sum(b, [from], qkv.v);
    else b.emit({ op: 'rmsNorm', input: from, groupSize: headDim, eps, out: qkv.v });
  };
  if (!shared && a.valueFromKey) values(qkv.k);
  if (a.qkNorm !== 'none') {
    for (const name of rotated) {
      const groupSize = a.qkNorm === 'head' ? headDim : b.buffers.get(qkv[name])!.length;
      const inPlace = { input: qkv[name], out: qkv[name] };
      b.emit({ op: 'rmsNorm', weight: weight(`${name}_norm.weight`), groupSize, eps, ...inPlace });
    }
  }
  if (!shared && !a.valueFromKey && a.vNorm) values(qkv.v);
  if (a.clipQkv) {
    const own = shared ? rotated : (['q', 'k', 'v'] as const);
    for (const name of own) b.emit({ op: 'clamp', buffer: qkv[name], limit: a.clipQkv });
  }
  if (rope) for (const name of rotated) b.emit({ op: 'rope', buffer: qkv[name], headDim, rope });
}

/** out = ffn_norm(x), not before the layer's slot. FFN and experts share the weight. */
export function ffnNorm(b: PlanBuilder, layer: number, x: string, out: string): string {
  const weight = ref(ffnHolder(b, layer), `layers.${layer}.ffn_norm.weight`);
  return norm(b, x, weight, out, b.slots.at(-1));
}

/** The stream that holds what FFN and experts of a layer share: the dense one, where there is one. */
export function ffnHolder(b: PlanBuilder, layer: number): string {
  return b.config.layers[layer]!.ffn ? streamName.dense(layer) : streamName.router(layer);
}

/** f = down(act(gate · input) ∘ up · input) of a normed input; returns the buffer of f, [hiddenDim]. */
export function ffn(b: PlanBuilder, layer: number, input: string): string {
  const { dim, activation, bias } = denseOf(b.config.layers[layer]!);
  const weight = (name: string) => ref(streamName.dense(layer), `layers.${layer}.ffn.${name}`);
  const output = (out: string, name: string) => ({
    out,
    matrix: weight(`${name}_proj.weight`),
    ...(bias && { bias: weight(`${name}_proj.bias`) }),
  });
  const gate = b.buffer('gate', dim);
  const up = b.buffer('up', dim);
  const hidden = b.buffer('ffnHidden', dim);
  const out = b.buffer('ffnOut');
  b.emit({ op: 'matvec', input, outs: [output(gate, 'gate'), output(up, 'up')] });
  b.emit({ op: 'glu', gate, up, activation, out: hidden });
  b.emit({ op: 'matvec', input: hidden, outs: [output(out, 'down')] });
  return out;
}

/** The layer's dense FFN; the styles that need one are checked to have it. */
function denseOf(layer: LayerConfig): FfnConfig {
  if (!layer.ffn) throw new Error('a dense layer without an FFN passed the configuration check');
  return layer.ffn;
}

/** out = router · input, one logit for each expert. */
function routerLogits(b: PlanBuilder, layer: number, input: string, name: string): string {
  const { count: rows } = b.config.layers[layer]!.experts!;
  const out = b.buffer(name, rows);
  const weight = ref(streamName.router(layer), `layers.${layer}.router.weight`);
  b.emit({ op: 'plainMatvec', input, weight, rows, cols: b.config.hiddenDim, out });
  return out;
}

/**
 * e = Σ s_j · Expert_j(input) over the experts that the router chooses on `routerInput` (Eq. 4.14, 4.15).
 * @param ring entry of the expert queue that e goes into
 */
export function routedExperts(
  b: PlanBuilder,
  layer: number,
  input: string,
  ring: number,
  routerInput: string = input,
): string {
  const { topK, dim, activation, normalizeTopK: normalize, expertScale } = b.config.layers[layer]!.experts!;
  const logits = routerLogits(b, layer, routerInput, 'routerLogits');
  const routing = b.buffer(`routing.${ring}`, 2 * topK);
  const scale = expertScale && {
    scale: ref(streamName.router(layer), `layers.${layer}.router.expert_scale`),
  };
  b.emit({ op: 'route', logits, topK, normalize, ...scale, out: routing });
  const hidden = b.buffer(`expertHidden.${ring}`, topK * dim);
  const out = b.buffer(`expertOut.${ring}`);
  const chosen = { layer, routing, topK, dim };
  b.emit({ op: 'expertsUp', ...chosen, input, activation, hidden });
  b.emit({ op: 'expertsDown', ...chosen, hidden, out });
  return out;
}

/**
 * What the router of `layer` would choose if its input were the residual of the layer before, `mid`: the prediction of
 * report §3.9.2, from the router itself instead of the routing before it.
 */
export function predictExperts(b: PlanBuilder, layer: number, mid: string): void {
  const { experts } = b.config.layers[layer] ?? {};
  if (!b.predicts || !experts || b.config.expertDelay > 0) return;
  const { topK, normalizeTopK: normalize } = experts;
  const weight = routerNorm(b, layer, experts);
  const input = weight ? norm(b, mid, weight, b.buffer('predictionInput')) : mid;
  const logits = routerLogits(b, layer, input, 'predictionLogits');
  const routing = b.buffer('predictedRouting', 2 * topK);
  // Scales of logits or weights do not change which are the largest.
  const step = b.emit({ op: 'route', logits, topK, normalize, out: routing });
  b.predictions.push({ layer, routing, step });
}

/** The weight of the norm in front of a layer's router, if it has one. */
function routerNorm(b: PlanBuilder, layer: number, experts: ExpertsConfig): WeightRef | undefined {
  const own = (name: string) => ref(streamName.router(layer), `layers.${layer}.${name}.weight`);
  if (experts.routerNorm) return own('router_norm');
  if (experts.ownNorms) return own('experts_norm');
  if (!normPlaces(b.config.layers[layer]!).ffnIn) return undefined;
  return ref(ffnHolder(b, layer), `layers.${layer}.ffn_norm.weight`);
}

/** Final norm, LM head (or the tied embedding) and soft-cap; returns the buffer of the logits, [vocabSize]. */
export function emitHead(b: PlanBuilder, residual: string): string {
  const { vocabSize, tiedEmbeddings, finalLogitSoftcap } = b.config;
  const input = norm(b, residual, ref(streamName.finalNorm(), 'norm.weight'), b.buffer('finalNorm'));
  const logits = b.buffer('logits', vocabSize);
  const matrix = tiedEmbeddings
    ? ref(streamName.embedding(), 'embed_tokens.weight')
    : ref(streamName.lmHead(), 'lm_head.weight');
  b.head = b.emit({ op: 'matvec', input, outs: [{ out: logits, matrix }] });
  if (finalLogitSoftcap) b.emit({ op: 'softcap', buffer: logits, cap: finalLogitSoftcap });
  return logits;
}
