/** Sequential layers with norms, scales and routers beyond the report's: OLMo 2, Gemma 3 and 4. */
import { type ExpertsConfig, normPlaces } from '../model/config.js';
import { streamName } from '../model/streams.js';
import {
  emitAttention,
  emitExperts,
  emitFfn,
  emitFfnNorm,
  emitNorm,
  emitPrediction,
  emitSum,
  ffnHolder,
  ref,
} from './layers.js';
import type { PlanBuilder } from './phases.js';

/** x_out = scale · (mid + block(mid)) with mid = x_in + attn; norms stand in front of and behind each block. */
export function emitNormedLayer(b: PlanBuilder, layer: number, xIn: string, out: string): void {
  const config = b.config.layers[layer]!;
  const attn = emitAttention(b, layer, xIn);
  const mid = b.buffer('mid');
  emitSum(b, [xIn, attn], mid);
  const block = emitBlock(b, layer, mid);
  const holder = ffnHolder(b, layer);
  if (normPlaces(config).ffnOut)
    emitNorm(b, block, ref(holder, `layers.${layer}.ffn_post_norm.weight`), block);
  const scale = config.outputScale ? ref(holder, `layers.${layer}.output_scale`) : undefined;
  const terms = b.config.perLayerInput ? emitLayerInput(b, layer, [mid, block]) : [mid, block];
  const ones = terms.map(() => 1);
  b.residuals.push({ layer, buffer: out, phase: emitSum(b, terms, out, ones, scale) });
}

const LAYER_INPUTS = 'layerInputs';

/** The inputs of all layers, [layers · dim]: (norm(projection(x) / √hiddenDim) + √dim · embedding row) / √2. */
export function emitLayerInputs(b: PlanBuilder, dim: number, x: string): void {
  const { hiddenDim, normEps, layers } = b.config;
  const all = b.buffer(LAYER_INPUTS, layers.length * dim);
  const rows = b.buffer('layerInputRows', layers.length * dim);
  const weight = (name: string) => ref(streamName.attention(0), `layer_input.${name}.weight`);
  const table = ref(streamName.embedding(), 'layer_input.embedding.weight');
  b.emit({ op: 'embed', weight: table, scale: Math.sqrt(dim), out: rows });
  b.emit({ op: 'matvec', input: x, weights: [weight('projection')], outs: [all] });
  // norm(x / √d) with eps is norm(x) with eps · d.
  const eps = normEps * hiddenDim;
  b.emit({ op: 'rmsNorm', input: all, weight: weight('norm'), groupSize: dim, eps, out: all });
  b.emit({ op: 'sum', terms: [all, rows], coefficients: [Math.SQRT1_2, Math.SQRT1_2], out: all });
}

/** x = Σ terms; x + norm(out(act(gate x) · input of the layer)). Returns the terms of the new sum. */
function emitLayerInput(b: PlanBuilder, layer: number, terms: readonly string[]): string[] {
  const { ffn } = b.config.layers[layer]!;
  const { dim } = b.config.perLayerInput!;
  const weight = (name: string) => ref(ffnHolder(b, layer), `layers.${layer}.layer_input.${name}.weight`);
  const x = b.buffer('afterFfn');
  const gate = b.buffer('layerInputGate', dim);
  const own = b.buffer('layerInput', dim);
  const out = b.buffer('layerInputOut');
  emitSum(b, terms, x);
  b.emit({ op: 'matvec', input: x, weights: [weight('gate')], outs: [gate] });
  const glu = {
    op: 'glu',
    gate,
    up: LAYER_INPUTS,
    upFrom: layer * dim,
    activation: ffn!.activation,
  } as const;
  b.emit({ ...glu, out: own });
  b.emit({ op: 'matvec', input: own, weights: [weight('out')], outs: [out] });
  emitNorm(b, out, weight('norm'), out);
  return [x, out];
}

/** FFN and experts on `mid`, side by side, added; returns the buffer of their sum. */
function emitBlock(b: PlanBuilder, layer: number, mid: string): string {
  const config = b.config.layers[layer]!;
  const { ffn, experts } = config;
  const slot = b.slots.at(-1)!;
  const input = normPlaces(config).ffnIn ? emitFfnNorm(b, layer, mid, 'ffnIn', slot) : mid;
  const outputs: string[] = [];
  if (ffn) {
    const out = emitFfn(b, layer, ffn, input);
    if (experts?.ownNorms) {
      emitNorm(b, out, ref(streamName.dense(layer), `layers.${layer}.ffn_out_norm.weight`), out);
    }
    outputs.push(out);
  }
  if (experts) outputs.push(emitNormedExperts(b, layer, experts, mid, input));
  emitPrediction(b, layer + 1, mid);
  if (outputs.length === 1) return outputs[0]!;
  const both = b.buffer('block');
  emitSum(b, outputs, both);
  return both;
}

/** Experts with their own norms and router input; `input` is what the FFN reads. */
function emitNormedExperts(
  b: PlanBuilder,
  layer: number,
  experts: ExpertsConfig,
  mid: string,
  input: string,
): string {
  const slot = b.slots.at(-1)!;
  const norm = (name: string) => ref(streamName.router(layer), `layers.${layer}.${name}.weight`);
  const own = experts.ownNorms ? b.buffer('expertInput.0') : input;
  if (experts.ownNorms) emitNorm(b, mid, norm('experts_norm'), own, slot);
  const routed = experts.routerNorm ? b.buffer('routerInput') : own;
  if (experts.routerNorm) emitNorm(b, mid, norm('router_norm'), routed, slot);
  if (experts.routerScale) emitSum(b, [routed], routed, [experts.routerScale]);
  const out = emitExperts(b, layer, experts, own, 0, routed);
  if (experts.ownNorms) emitNorm(b, out, norm('experts_out_norm'), out);
  return out;
}
