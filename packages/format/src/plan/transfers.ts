/** `call` and `sync` steps: when the weights of a plan are fetched, by transfer mode. */

import { streamName } from '../model/streams.js';
import type { PlanBuilder, Scheduled } from './phases.js';
import type { StepBody, TransferMode, TransferTarget, WeightRef } from './types.js';

interface Request {
  readonly stream: string;
  /** Effective layer at whose start an overlapped fetch begins; below 0 counts as 0. */
  readonly slot: number;
}

/**
 * All streams that a plan can ask for, in the order of the .cflow file without experts: in slot ℓ stand attention ℓ,
 * dense ℓ + δd (slot 0: dense 0 to δd) and router ℓ. Attention is fetched one layer ahead, dense δd layers ahead but
 * at least one, the router in its own layer. Slots never decrease along the list, so calls come out in this order.
 */
function requests({ config, predicts }: PlanBuilder): Request[] {
  const { denseDelay, layers } = config;
  const perLayer = config.iterations ?? 1;
  const list: Request[] = [];
  for (const layer of layers.keys()) {
    const slot = layer * perLayer;
    list.push({ stream: streamName.attention(layer), slot: slot - 1 });
    const first = layer === 0 ? 0 : layer + denseDelay;
    for (let dense = first; dense <= layer + denseDelay && dense < layers.length; dense++) {
      list.push({ stream: streamName.dense(dense), slot: denseDelay ? slot : slot - 1 });
    }
    // A prediction runs a layer ahead of the router that it asks.
    list.push({ stream: streamName.router(layer), slot: predicts ? slot - 1 : slot });
  }
  const slot = layers.length * perLayer - 1;
  for (const stream of [streamName.finalNorm(), streamName.embedding(), streamName.lmHead()])
    list.push({ stream, slot });
  return list;
}

/** The weights that a step reads as streams; the embedding's gather of one row is none. */
export function streamWeights(body: StepBody): readonly WeightRef[] {
  if (body.op === 'rmsNorm') return body.weight ? [body.weight] : [];
  if (body.op === 'route' || body.op === 'sum') return body.scale ? [body.scale] : [];
  return body.op === 'matvec' ? [...body.weights, ...(body.biases ?? [])] : [];
}

/** The transfer steps of a scheduled plan; every stream is called and synced once per token. */
export function transferSteps(b: PlanBuilder, mode: TransferMode): Scheduled[] {
  if (mode === 'none') return [];
  const overlap = mode !== 'stall';
  const steps: Scheduled[] = [];
  const add = (target: TransferTarget, callPhase: number, trigger: string, syncPhase: number) => {
    steps.push({ phase: overlap ? callPhase : syncPhase, body: { op: 'call', target, trigger } });
    steps.push({ phase: syncPhase, body: { op: 'sync', target } });
  };
  const firstUse = firstUses(b);
  for (const { stream, slot } of requests(b)) {
    const use = firstUse.get(stream);
    if (use === undefined) continue;
    const phase = slot > 0 ? b.slots[slot]! : 0;
    add({ kind: 'stream', stream }, phase, slot > 0 ? `slot ${slot}` : 'token', use);
  }
  const routed = new Map<string, number>();
  for (const { phase, body } of b.steps) {
    if (body.op === 'route') routed.set(body.out, phase);
    if (body.op !== 'experts') continue;
    const target: TransferTarget = { kind: 'experts', layer: body.layer, routing: body.routing };
    add(target, routed.get(body.routing)! + 1, body.routing, phase);
  }
  for (const { layer, routing, phase } of b.predictions) {
    const target: TransferTarget = { kind: 'experts', layer, routing, predicted: true };
    steps.push({ phase: phase + 1, body: { op: 'call', target, trigger: routing } });
  }
  return steps;
}

function firstUses(b: PlanBuilder): Map<string, number> {
  const uses = new Map<string, number>();
  for (const { phase, body } of b.steps) {
    for (const { stream } of streamWeights(body))
      uses.set(stream, Math.min(phase, uses.get(stream) ?? phase));
  }
  return uses;
}
