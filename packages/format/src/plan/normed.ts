/** Sequential layers with norms, scales and routers beyond the report's: OLMo 2, Gemma 3 and 4. */
import { normPlaces } from '../model/config.js';
import { streamName } from '../model/streams.js';
import type { PlanBuilder } from './builder.js';
import {
  attention,
  ffn,
  ffnHolder,
  ffnNorm,
  norm,
  predictExperts,
  ref,
  routedExperts,
  sum,
} from './layers.js';

/** x_out = scale · (mid + block(mid)) with mid = x_in + attn; norms stand in front of and behind each block. */
export function emitNormedLayer(b: PlanBuilder, layer: number, xIn: string, out: string): void {
  const config = b.config.layers[layer]!;
  const holder = ffnHolder(b, layer);
  const mid = sum(b, [xIn, attention(b, layer, xIn)], b.buffer('mid'));
  const block = emitBlock(b, layer, mid);
  if (normPlaces(config).ffnOut) norm(b, block, ref(holder, `layers.${layer}.ffn_post_norm.weight`), block);
  const scale = config.outputScale ? ref(holder, `layers.${layer}.output_scale`) : undefined;
  const terms = b.config.perLayerInput ? emitLayerInput(b, layer, [mid, block]) : [mid, block];
  sum(b, terms, out, { scale });
}

const LAYER_INPUTS = 'layerInputs';

/** The inputs of all layers, [layers · dim]: (norm(projection(x) / √hiddenDim) + √dim · embedding row) / √2. */
export function emitLayerInputs(b: PlanBuilder, dim: number, x: string): void {
  const { hiddenDim, normEps, layers } = b.config;
  const all = b.buffer(LAYER_INPUTS, layers.length * dim);
  const rows = b.buffer('layerInputRows', layers.length * dim);
  const weight = (name: string) => ref(streamName.attention(0), `layer_input.${name}.weight`);
  const table = ref(streamName.embedding(), 'layer_input.embedding.weight');
  b.emit({ op: 'embed', matrix: table, scale: Math.sqrt(dim), out: rows });
  b.emit({ op: 'matvec', input: x, outs: [{ out: all, matrix: weight('projection') }] });
  // norm(x / √d) with eps is norm(x) with eps · d.
  const eps = normEps * hiddenDim;
  b.emit({ op: 'rmsNorm', input: all, weight: weight('norm'), groupSize: dim, eps, out: all });
  b.emit({ op: 'sum', terms: [all, rows], coefficients: [Math.SQRT1_2, Math.SQRT1_2], out: all });
}

/** x = Σ terms; x + norm(out(act(gate x) · input of the layer)). Returns the terms of the new sum. */
function emitLayerInput(b: PlanBuilder, layer: number, terms: readonly string[]): string[] {
  const { activation } = b.config.layers[layer]!.ffn!;
  const { dim } = b.config.perLayerInput!;
  const weight = (name: string) => ref(ffnHolder(b, layer), `layers.${layer}.layer_input.${name}.weight`);
  const x = sum(b, terms, b.buffer('afterFfn'));
  const gate = b.buffer('layerInputGate', dim);
  const own = b.buffer('layerInput', dim);
  const out = b.buffer('layerInputOut');
  b.emit({ op: 'matvec', input: x, outs: [{ out: gate, matrix: weight('gate') }] });
  b.emit({ op: 'glu', gate, up: LAYER_INPUTS, upFrom: layer * dim, activation, out: own });
  b.emit({ op: 'matvec', input: own, outs: [{ out, matrix: weight('out') }] });
  return [x, norm(b, out, weight('norm'), out)];
}

/** FFN and experts on `mid`, side by side, added; returns the buffer of their sum. */
function emitBlock(b: PlanBuilder, layer: number, mid: string): string {
  const config = b.config.layers[layer]!;
  const { experts } = config;
  const input = normPlaces(config).ffnIn ? ffnNorm(b, layer, mid, 'ffnIn') : mid;
  const outputs: string[] = [];
  if (config.ffn) {
    const out = ffn(b, layer, input);
    const weight = ref(streamName.dense(layer), `layers.${layer}.ffn_out_norm.weight`);
    outputs.push(experts?.ownNorms ? norm(b, out, weight, out) : out);
  }
  if (experts) outputs.push(emitNormedExperts(b, layer, mid, input));
  predictExperts(b, layer + 1, mid);
  return outputs.length === 1 ? outputs[0]! : sum(b, outputs, b.buffer('block'));
}

/** Experts with their own norms and router input; `input` is what the FFN reads. */
function emitNormedExperts(b: PlanBuilder, layer: number, mid: string, input: string): string {
  const { ownNorms, routerNorm, routerScale } = b.config.layers[layer]!.experts!;
  const slot = b.slots.at(-1)!;
  const weight = (name: string) => ref(streamName.router(layer), `layers.${layer}.${name}.weight`);
  const own = ownNorms ? norm(b, mid, weight('experts_norm'), b.buffer('expertInput.0'), slot) : input;
  const routed = routerNorm ? norm(b, mid, weight('router_norm'), b.buffer('routerInput'), slot) : own;
  if (routerScale) sum(b, [routed], routed, { coefficients: [routerScale] });
  const out = routedExperts(b, layer, own, 0, routed);
  return ownNorms ? norm(b, out, weight('experts_out_norm'), out) : out;
}
