/** `call` and `sync` steps: when the weights of a plan are fetched, by transfer mode. */

import { streamName } from '../model/streams.js';
import type { PlanBuilder } from './builder.js';
import { type StepBody, stepFields, type TransferTarget, type WeightRef } from './steps.js';
import type { TransferMode } from './types.js';

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

/** A `call` or `sync`, and the phase that it opens. */
export interface PlacedTransfer {
  readonly phase: number;
  readonly body: Extract<StepBody, { op: 'call' | 'sync' }>;
}

/**
 * The transfer steps of a scheduled plan; every stream is called and synced once per token.
 * @param phaseOf phase of each step of `b`
 */
export function transferSteps(
  b: PlanBuilder,
  phaseOf: readonly number[],
  mode: TransferMode,
): PlacedTransfer[] {
  if (mode === 'none') return [];
  const overlap = mode !== 'stall';
  const steps: PlacedTransfer[] = [];
  const add = (target: TransferTarget, callPhase: number, trigger: string, syncPhase: number) => {
    steps.push({ phase: overlap ? callPhase : syncPhase, body: { op: 'call', target, trigger } });
    steps.push({ phase: syncPhase, body: { op: 'sync', target } });
  };
  const firstUse = firstUses(b, phaseOf);
  for (const { stream, slot } of requests(b)) {
    const use = firstUse.get(stream);
    if (use === undefined) continue;
    const phase = slot > 0 ? phaseOf[b.slots[slot]!]! : 0;
    add({ kind: 'stream', stream }, phase, slot > 0 ? `slot ${slot}` : 'token', use);
  }
  const routed = new Map<string, number>();
  for (const [step, { body }] of b.steps.entries()) {
    if (body.op === 'route') routed.set(body.out, phaseOf[step]!);
    if (body.op !== 'expertsUp') continue;
    const target: TransferTarget = { kind: 'experts', layer: body.layer, routing: body.routing };
    add(target, routed.get(body.routing)! + 1, body.routing, phaseOf[step]!);
  }
  for (const { layer, routing, step } of b.predictions) {
    const target: TransferTarget = { kind: 'experts', layer, routing, predicted: true };
    steps.push({ phase: phaseOf[step]! + 1, body: { op: 'call', target, trigger: routing } });
  }
  return steps;
}

/** The phase that first uses each stream. */
function firstUses(b: PlanBuilder, phaseOf: readonly number[]): Map<string, number> {
  const uses = new Map<string, number>();
  for (const [step, { body }] of b.steps.entries()) {
    for (const { stream } of streamWeights(body)) {
      uses.set(stream, Math.min(phaseOf[step]!, uses.get(stream) ?? Number.POSITIVE_INFINITY));
    }
  }
  return uses;
}

/** The weights that a step reads as streams; the embedding's gather of one row is none. */
function streamWeights(body: StepBody): WeightRef[] {
  if (body.op === 'embed') return [];
  if (body.op === 'matvec')
    return body.outs.flatMap(({ matrix, bias }) => (bias ? [matrix, bias] : [matrix]));
  const fields = stepFields(body.op, 'plan').filter(([, kind]) => kind === 'weight' || kind === 'weight?');
  const values = body as unknown as Readonly<Record<string, WeightRef | undefined>>;
  return fields.flatMap(([name]) => values[name] ?? []);
}
