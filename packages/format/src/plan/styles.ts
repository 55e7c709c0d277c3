/** The combine styles as layer builders: how attention, FFN and experts join the residual (report §4.2.3, §4.3). */
import { type CombineStyle, isPlainLayer } from '../model/config.js';
import {
  denseOf,
  emitAttention,
  emitEmbedding,
  emitExperts,
  emitFfn,
  emitFfnNorm,
  emitPrediction,
  emitSum,
} from './layers.js';
import { emitLayerInputs, emitNormedLayer } from './normed.js';
import type { PlanBuilder } from './phases.js';

/** Emits everything from the embedding to the last residual; returns the buffer of that residual. */
type BuildLayers = (b: PlanBuilder) => string;

interface ResidualStyle {
  /** What an undelayed FFN, the router and the experts read: norm(x_mid) or norm(x_in). */
  readonly source: 'mid' | 'in';
  /** Factor of FFN and expert outputs. */
  readonly scale: number;
}

const STYLES: Record<CombineStyle, BuildLayers> = {
  parallelSqrt2: residualLayers({ source: 'mid', scale: Math.SQRT1_2 }),
  delayedSum: residualLayers({ source: 'mid', scale: 1 }),
  asyncExperts: residualLayers({ source: 'in', scale: 1 }),
  sequential: residualLayers({ source: 'mid', scale: 1 }),
  decoupledStreams,
  pipelineRegisters,
  fixedPoint,
};

export function emitLayers(b: PlanBuilder): string {
  return STYLES[b.config.combineStyle](b);
}

/** One residual stream with delays: x_out = x_in + attn + scale · (f + Σ injected e) (Eq. 4.9 to 4.16). */
function residualLayers(style: ResidualStyle): BuildLayers {
  return (b) => {
    const { denseDelay, layers, perLayerInput } = b.config;
    // A layer writes its output in its last phase and the delayed FFN reads in the first, so δd entries are enough;
    // two at least, because x_in is still read when x_out is written.
    const ring = Math.max(2, denseDelay);
    const residual = (layer: number) => b.buffer(`residual.${(layer + ring) % ring}`);
    emitEmbedding(b, residual(-1));
    if (perLayerInput) emitLayerInputs(b, perLayerInput.dim, residual(-1));
    for (const [layer, config] of layers.entries()) {
      if (isPlainLayer(config) && !perLayerInput) residualLayer(b, style, layer, residual);
      else emitNormedLayer(b, layer, residual(layer - 1), residual(layer));
    }
    return residual(layers.length - 1);
  };
}

function residualLayer(
  b: PlanBuilder,
  style: ResidualStyle,
  layer: number,
  residual: (l: number) => string,
): void {
  const { expertDelay, layers, denseDelay } = b.config;
  const { ffn, experts } = layers[layer]!;
  const xIn = residual(layer - 1);
  const attn = emitAttention(b, layer, xIn);
  const slot = b.slots.at(-1)!;
  const readsMid =
    style.source === 'mid' && (experts !== undefined || (ffn !== undefined && denseDelay === 0));
  const source = readsMid ? b.buffer('mid') : xIn;
  if (readsMid) emitSum(b, [xIn, attn], source);
  const activation = normOnce(b, layer, slot);
  const queue = layer % (expertDelay + 1);
  // The experts may run as late as δe layers on, so their input outlives the layer.
  const routed = experts && activation(source, `expertInput.${queue}`);
  const outputs: string[] = [];
  // While ℓ < δd there is no delayed residual: f is zero, and no term.
  if (ffn && layer >= denseDelay) {
    const input = denseDelay ? residual(layer - denseDelay) : source;
    outputs.push(emitFfn(b, layer, ffn, activation(input, 'ffnIn')));
  }
  if (experts && routed) emitExperts(b, layer, experts, routed, queue);
  emitPrediction(b, layer + 1, source);
  const injected = injectedAt(b, layer);
  outputs.push(...injected.map((from) => b.buffer(`expertOut.${from % (expertDelay + 1)}`)));
  const waitsForMid = readsMid && ((ffn && denseDelay === 0) || injected.includes(layer));
  const base = waitsForMid ? [source] : [xIn, attn];
  const coefficients = [...base.map(() => 1), ...outputs.map(() => style.scale)];
  const out = residual(layer);
  b.residuals.push({ layer, buffer: out, phase: emitSum(b, [...base, ...outputs], out, coefficients) });
}

/** ffn_norm of a layer, once per input: FFN and experts that read the same share the step. */
function normOnce(b: PlanBuilder, layer: number, slot: number): (input: string, out: string) => string {
  const done = new Map<string, string>();
  return (input, out) => {
    const known = done.get(input);
    if (known) return known;
    done.set(input, emitFfnNorm(b, layer, input, out, slot));
    return out;
  };
}

/** Layers whose expert outputs join at `layer`: min(ℓ + δe, L − 1), so the last layers are clamped (Eq. 4.16). */
function injectedAt(b: PlanBuilder, layer: number): number[] {
  const { expertDelay, layers } = b.config;
  const last = layers.length - 1;
  const first = Math.max(0, layer - expertDelay);
  const from = Array.from({ length: layer - first + 1 }, (_, i) => first + i);
  return from.filter((l) => layers[l]!.experts && Math.min(l + expertDelay, last) === layer);
}

/** FFN of `layer` on `input`, not before the layer's slot: its weights are asked for by slot. */
function denseFfn(b: PlanBuilder, layer: number, input: string): string {
  const normed = emitFfnNorm(b, layer, input, 'ffnIn', b.slots.at(-1)!);
  return emitFfn(b, layer, denseOf(b.config.layers[layer]!), normed);
}

/** arch1: two streams that merge every mergeInterval layers (Eq. 4.17, 4.18). Between merges the trace shows s_ffn. */
function decoupledStreams(b: PlanBuilder): string {
  const [attnStream, ffnStream] = ['attnStream', 'ffnStream'] as const;
  emitEmbedding(b, attnStream);
  emitEmbedding(b, ffnStream);
  for (const layer of b.config.layers.keys()) {
    const attn = emitAttention(b, layer, attnStream);
    const ffn = denseFfn(b, layer, ffnStream);
    if ((layer + 1) % b.config.mergeInterval!) {
      emitSum(b, [attnStream, attn], attnStream);
      b.residuals.push({ layer, buffer: ffnStream, phase: emitSum(b, [ffnStream, ffn], ffnStream) });
    } else {
      const phase = emitMerge(b, [attnStream, attn, ffnStream, ffn], [attnStream, ffnStream]);
      b.residuals.push({ layer, buffer: attnStream, phase });
    }
  }
  return attnStream;
}

/** Both streams become the mean of the two: half the sum of `terms`, in place in the first, then copied. */
function emitMerge(b: PlanBuilder, terms: string[], [first, second]: readonly [string, string]): number {
  const phase = emitSum(
    b,
    terms,
    first,
    terms.map(() => 0.5),
  );
  emitSum(b, [first], second);
  return phase;
}

/** arch3: attention reads attn_reg, the FFN reads xfm_reg of the layer before (Eq. 4.19 to 4.21). */
function pipelineRegisters(b: PlanBuilder): string {
  const [attnReg, xfmReg] = ['attnReg', 'xfmReg'] as const;
  emitEmbedding(b, attnReg);
  emitEmbedding(b, xfmReg);
  for (const layer of b.config.layers.keys()) {
    const attn = emitAttention(b, layer, attnReg);
    const ffn = denseFfn(b, layer, xfmReg);
    emitSum(b, [attnReg, attn], attnReg);
    b.residuals.push({ layer, buffer: xfmReg, phase: emitSum(b, [attnReg, ffn], xfmReg) });
  }
  return xfmReg;
}

/** arch5: x ← x_block + attn(x) + FFN(norm(x + attn(x))), x_block held through the iterations of a block (Eq. 4.22). */
function fixedPoint(b: PlanBuilder): string {
  const residual = (index: number) => b.buffer(`residual.${index % 2}`);
  emitEmbedding(b, residual(0));
  for (const block of b.config.layers.keys()) {
    const entry = residual(block);
    const out = residual(block + 1);
    for (let iteration = 0; iteration < b.config.iterations!; iteration++) {
      const x = iteration ? out : entry;
      const attn = emitAttention(b, block, x);
      const mid = b.buffer('mid');
      emitSum(b, [x, attn], mid);
      const ffn = denseFfn(b, block, mid);
      b.residuals.push({
        layer: b.residuals.length,
        buffer: out,
        phase: emitSum(b, [entry, attn, ffn], out),
      });
    }
  }
  return residual(b.config.layers.length);
}
