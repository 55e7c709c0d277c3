/**
 * The combine styles, each from top to bottom: how attention, FFN and experts join the residual (report §4.2.3, §4.3).
 * pipeline_native/models.py has the same loops over tensors.
 */
import { type CombineStyle, isPlainLayer } from '../model/config.js';
import type { PlanBuilder } from './builder.js';
import { attention, embed, ffn, ffnNorm, predictExperts, routedExperts, sum } from './layers.js';
import { emitLayerInputs, emitNormedLayer } from './normed.js';

/** Emits everything from the embedding to the last residual; returns the buffer of that residual. */
type EmitLayers = (b: PlanBuilder) => string;

const STYLES: Record<CombineStyle, EmitLayers> = {
  sequential: residualLayers({ source: 'mid', scale: 1 }),
  parallelSqrt2: residualLayers({ source: 'mid', scale: Math.SQRT1_2 }),
  delayedSum: residualLayers({ source: 'mid', scale: 1 }),
  asyncExperts: residualLayers({ source: 'in', scale: 1 }),
  decoupledStreams,
  pipelineRegisters,
  fixedPoint,
};

export function emitLayers(b: PlanBuilder): string {
  return STYLES[b.config.combineStyle](b);
}

interface ResidualStyle {
  /** What an undelayed FFN, the router and the experts read: norm(x_mid) or norm(x_in). */
  readonly source: 'mid' | 'in';
  /** Factor of FFN and expert outputs. */
  readonly scale: number;
}

/** One residual stream (Eq. 4.9 to 4.16): x_out = x_mid + scale · (f + Σ e), with f and e delayed by δd and δe layers. */
function residualLayers(style: ResidualStyle): EmitLayers {
  return (b) => {
    const { denseDelay, layers, perLayerInput } = b.config;
    // A layer writes its output in its last phase and the delayed FFN reads in the first, so δd entries are enough;
    // two at least, because x_in is still read when x_out is written.
    const ring = Math.max(2, denseDelay);
    const residual = (layer: number) => b.buffer(`residual.${(layer + ring) % ring}`);
    const x = embed(b, residual(-1));
    if (perLayerInput) emitLayerInputs(b, perLayerInput.dim, x);
    for (const [layer, config] of layers.entries()) {
      if (isPlainLayer(config) && !perLayerInput) residualLayer(b, style, layer, residual);
      else emitNormedLayer(b, layer, residual(layer - 1), residual(layer));
      b.completeResidual(layer, residual(layer));
    }
    return residual(layers.length - 1);
  };
}

/** Layer ℓ of a residual style. @param residual the buffer of x_out of a layer; ℓ − 1 gives x_in */
function residualLayer(
  b: PlanBuilder,
  { source, scale }: ResidualStyle,
  l: number,
  residual: (l: number) => string,
): void {
  const { denseDelay: dd, expertDelay: de, layers } = b.config;
  const layer = layers[l]!;
  const queue = (from: number) => from % (de + 1);
  const xIn = residual(l - 1);
  // m = Attn(norm(x_in)); x_mid = x_in + m, where something reads it within the layer (4.9, 4.10)
  const m = attention(b, l, xIn);
  const readsMid = source === 'mid' && (layer.experts !== undefined || (layer.ffn !== undefined && dd === 0));
  const read = readsMid ? sum(b, [xIn, m], 'mid') : xIn;
  // r = norm(x_mid), or norm(x_in) in asyncExperts; it outlives the layer when its experts run up to δe layers on (4.13)
  const r = layer.experts && ffnNorm(b, l, read, `expertInput.${queue(l)}`);
  // f = FFN(norm(x_out of ℓ − δd)); no term while ℓ < δd. FFN and experts that read the same share the norm (4.11)
  const input = dd === 0 ? read : residual(l - dd);
  const feeds = layer.ffn !== undefined && l >= dd;
  const f = feeds ? [ffn(b, l, r && input === read ? r : ffnNorm(b, l, input, 'ffnIn'))] : [];
  // e = Σ s_j · Expert_j(r), added to x_out of layer ℓ + δe, or of the last (4.14 to 4.16)
  if (r) routedExperts(b, l, r, queue(l));
  predictExperts(b, l + 1, read);
  const injected = layersInjectedAt(b, l);
  const e = injected.map((from) => b.buffer(`expertOut.${queue(from)}`));
  // x_out = x_mid + scale · (f + Σ e) (4.12); of x_in and m, unless x_mid is waited for anyway
  const waitsForMid = readsMid && ((layer.ffn && dd === 0) || injected.includes(l));
  const mid = waitsForMid ? [read] : [xIn, m];
  const coefficients = [...mid.map(() => 1), ...[...f, ...e].map(() => scale)];
  sum(b, [...mid, ...f, ...e], residual(l), { coefficients });
}

/** Layers whose expert outputs join at layer `l`: ℓ + δe, so that the last layers are clamped (Eq. 4.16). */
function layersInjectedAt(b: PlanBuilder, l: number): number[] {
  const { expertDelay, layers } = b.config;
  const last = layers.length - 1;
  return [...layers.keys()].filter(
    (from) => layers[from]!.experts && from <= l && Math.min(from + expertDelay, last) === l,
  );
}

/** f = FFN(norm(x)) of `layer`. */
const feed = (b: PlanBuilder, layer: number, x: string) => ffn(b, layer, ffnNorm(b, layer, x, 'ffnIn'));

/** arch1: attention and FFN have a stream each, averaged every mergeInterval layers (Eq. 4.17, 4.18). */
function decoupledStreams(b: PlanBuilder): string {
  const attnStream = embed(b, 'attnStream');
  const ffnStream = embed(b, 'ffnStream');
  for (const layer of b.config.layers.keys()) {
    const m = attention(b, layer, attnStream);
    const f = feed(b, layer, ffnStream);
    if ((layer + 1) % b.config.mergeInterval!) {
      // s_attn += m (4.17); s_ffn += f (4.18); the trace shows s_ffn
      sum(b, [attnStream, m], attnStream);
      b.completeResidual(layer, sum(b, [ffnStream, f], ffnStream));
    } else {
      // s_attn = s_ffn = (s_attn + m + s_ffn + f) / 2
      const coefficients = [0.5, 0.5, 0.5, 0.5];
      b.completeResidual(layer, sum(b, [attnStream, m, ffnStream, f], attnStream, { coefficients }));
      sum(b, [attnStream], ffnStream);
    }
  }
  return attnStream;
}

/** arch3: attention reads attn_reg, the FFN reads xfm_reg of the layer before (Eq. 4.19 to 4.21). */
function pipelineRegisters(b: PlanBuilder): string {
  const attnReg = embed(b, 'attnReg');
  const xfmReg = embed(b, 'xfmReg');
  for (const layer of b.config.layers.keys()) {
    // attn_reg += Attn(norm(attn_reg)) (4.19), once f = FFN(norm(xfm_reg)) is on its way (4.20)
    const m = attention(b, layer, attnReg);
    const f = feed(b, layer, xfmReg);
    sum(b, [attnReg, m], attnReg);
    // xfm_reg = attn_reg + f (4.21)
    b.completeResidual(layer, sum(b, [attnReg, f], xfmReg));
  }
  return xfmReg;
}

/** arch5: x ← x_block + m + FFN(norm(x + m)) with m = Attn(norm(x)); x_block is held through a block (Eq. 4.22). */
function fixedPoint(b: PlanBuilder): string {
  const residual = (index: number) => b.buffer(`residual.${index % 2}`);
  embed(b, residual(0));
  for (const block of b.config.layers.keys()) {
    const xBlock = residual(block);
    const out = residual(block + 1);
    for (let iteration = 0; iteration < b.config.iterations!; iteration++) {
      const x = iteration ? out : xBlock;
      const m = attention(b, block, x);
      const f = feed(b, block, sum(b, [x, m], 'mid'));
      b.completeResidual(b.residuals.length, sum(b, [xBlock, m, f], out));
    }
  }
  return residual(b.config.layers.length);
}
