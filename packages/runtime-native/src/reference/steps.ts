/** What every step of a plan does: one short function per op, the readable definition that other engines must match. */
import {
  CflowError,
  type PlanStep,
  type StepOp,
  streamName,
  type TransferTarget,
  type WeightRef,
} from '@cflow/format';
import type { WeightStore } from '../weights.js';
import type { KvCache } from './kv-cache.js';
import { ACTIVATION_FUNCTIONS, dot, matvec, ropeFrequencies, softmax, topIndices } from './math.js';

/** What steps read and write while one token passes through the plan. */
export interface StepState {
  token: number;
  position: number;
  readonly weights: WeightStore;
  readonly caches: ReadonlyMap<number, KvCache>;
  /** Fetches under way, by `transferKey`. */
  readonly transfers: Map<string, Promise<void>>;
  /** @throws CflowError INTERNAL if the plan names a buffer that it does not declare */
  buffer(name: string): Float32Array;
}

type StepOf<Op extends StepOp> = Extract<PlanStep, { op: Op }>;
/** Executes one kind of step. */
export type StepFunction<Op extends StepOp> = (step: StepOf<Op>, state: StepState) => void | Promise<void>;

/** The definition of every step. */
export const STEP_FUNCTIONS: { readonly [Op in StepOp]: StepFunction<Op> } = {
  async embed({ matrix, scale, out }, state) {
    const row = await state.weights.row(matrix, state.token);
    const x = state.buffer(out);
    for (let i = 0; i < x.length; i++) x[i] = row[i]! * scale;
  },

  call({ target }, state) {
    const fetch = loadAll(targetStreams(target, state), state.weights);
    // A failure is reported by the sync; without a handler here Node would end the process before that.
    fetch.catch(() => undefined);
    state.transfers.set(transferKey(target), fetch);
  },

  async sync({ target }, state) {
    const fetch = state.transfers.get(transferKey(target));
    if (!fetch)
      throw new CflowError('INTERNAL', `the plan syncs ${transferKey(target)}, which was never called`);
    await fetch;
    state.transfers.delete(transferKey(target));
  },

  async rmsNorm({ input, weight, groupSize, eps, out }, state) {
    const w = weight && (await state.weights.tensor(weight));
    const x = state.buffer(input);
    const y = state.buffer(out);
    for (let from = 0; from < x.length; from += groupSize) {
      const scale = 1 / Math.sqrt(dot(x, from, x, from, groupSize) / groupSize + eps);
      for (let i = 0; i < groupSize; i++) {
        // A weight of one group serves every group (q/k norm per head); a longer one covers the whole buffer.
        y[from + i] = x[from + i]! * scale * (w ? w[(from + i) % w.length]! : 1);
      }
    }
  },

  async matvec({ input, outs }, state) {
    for (const { out, matrix, bias } of outs) {
      const weights = await state.weights.tensor(matrix);
      matvec(weights, state.buffer(input), state.buffer(out), bias && (await state.weights.tensor(bias)));
    }
  },

  async plainMatvec({ input, weight, out }, state) {
    matvec(await state.weights.tensor(weight), state.buffer(input), state.buffer(out));
  },

  rope({ buffer, headDim, rope }, state) {
    const x = state.buffer(buffer);
    const half = rope.rotaryDim / 2;
    for (const [i, frequency] of ropeFrequencies(rope, state.position).entries()) {
      const cos = Math.cos(state.position * frequency);
      const sin = Math.sin(state.position * frequency);
      for (let head = i; head < x.length; head += headDim) {
        const first = x[head]!;
        const second = x[head + half]!;
        x[head] = first * cos - second * sin;
        x[head + half] = second * cos + first * sin;
      }
    }
  },

  append({ cache, k, v }, state) {
    cacheOf(state, cache).append(state.buffer(k), state.buffer(v));
  },

  attend(step, state) {
    const { heads, kvHeads, headDim, window } = step;
    const cache = cacheOf(state, step.cache);
    const { values } = cache;
    const out = state.buffer(step.out);
    const rows = visibleRows(cache, window);
    for (let head = 0; head < heads; head++) {
      const kvHead = Math.floor((head * kvHeads) / heads) * headDim;
      const shares = attentionShares(step, cache, rows, state.buffer(step.q), head, kvHead);
      for (let i = 0; i < headDim; i++) {
        let sum = 0;
        for (let j = 0; j < rows.length; j++) sum += shares[j]! * values[rows[j]! + kvHead + i]!;
        out[head * headDim + i] = sum;
      }
    }
  },

  glu({ gate, up, upFrom = 0, activation, out }, state) {
    glu(
      state.buffer(gate),
      state.buffer(up).subarray(upFrom),
      ACTIVATION_FUNCTIONS[activation],
      state.buffer(out),
    );
  },

  async route({ logits, topK, normalize, scale, out }, state) {
    const factors = scale && (await state.weights.tensor(scale));
    const values = state.buffer(logits);
    const chosen = topIndices(values, topK);
    if (chosen.length < topK) {
      throw new CflowError(
        'NONFINITE_WEIGHT',
        `router logits (${logits}) are NaN at position ${state.position}`,
        {
          remedy: 'a weight is not finite; verify the file or convert it again',
        },
      );
    }
    const weights = Float64Array.from(normalize ? chosen.map((i) => values[i]!) : values);
    softmax(weights);
    const routing = state.buffer(out);
    routing.set(chosen);
    for (const [j, expert] of chosen.entries()) {
      routing[topK + j] = weights[normalize ? j : expert]! * (factors ? factors[expert]! : 1);
    }
  },

  async expertsUp({ layer, input, routing, topK, dim, activation, hidden }, state) {
    const x = state.buffer(input);
    const up = new Float32Array(dim);
    for (let j = 0; j < topK; j++) {
      const expert = expertTensors(layer, state.buffer(routing)[j]!, state.weights);
      const gate = state.buffer(hidden).subarray(j * dim, (j + 1) * dim);
      matvec(await expert('gate_proj'), x, gate);
      matvec(await expert('up_proj'), x, up);
      glu(gate, up, ACTIVATION_FUNCTIONS[activation], gate);
    }
  },

  async expertsDown({ layer, hidden, routing, topK, dim, out }, state) {
    const y = state.buffer(out);
    const choice = state.buffer(routing);
    const down = new Float32Array(y.length);
    const total = new Float64Array(y.length);
    for (let j = 0; j < topK; j++) {
      const expert = expertTensors(layer, choice[j]!, state.weights);
      matvec(await expert('down_proj'), state.buffer(hidden).subarray(j * dim, (j + 1) * dim), down);
      for (let i = 0; i < y.length; i++) total[i]! += choice[topK + j]! * down[i]!;
    }
    y.set(total);
  },

  async sum({ terms, coefficients, scale, out }, state) {
    const factor = scale ? (await state.weights.tensor(scale))[0]! : 1;
    const inputs = terms.map((name) => state.buffer(name));
    const y = state.buffer(out);
    for (let i = 0; i < y.length; i++) {
      let total = 0;
      for (let t = 0; t < inputs.length; t++) total += coefficients[t]! * inputs[t]![i]!;
      y[i] = factor * total;
    }
  },

  clamp({ buffer, limit }, state) {
    const x = state.buffer(buffer);
    for (let i = 0; i < x.length; i++) x[i] = Math.min(limit, Math.max(-limit, x[i]!));
  },

  softcap({ buffer, cap }, state) {
    const x = state.buffer(buffer);
    for (let i = 0; i < x.length; i++) x[i] = cap * Math.tanh(x[i]! / cap);
  },
};

/** Runs one step through the table. */
export function runStep(step: PlanStep, state: StepState): void | Promise<void> {
  return (STEP_FUNCTIONS[step.op] as StepFunction<StepOp>)(step, state);
}

async function loadAll(streams: readonly string[], weights: WeightStore): Promise<void> {
  await Promise.all(streams.map((stream) => weights.load(stream)));
}

function glu(gate: Float32Array, up: Float32Array, act: (x: number) => number, out: Float32Array): void {
  for (let i = 0; i < out.length; i++) out[i] = act(gate[i]!) * up[i]!;
}

/** Where the rows of the visible positions start in the cache, oldest first; the current position is the last. */
function visibleRows(cache: KvCache, window = cache.length): Float64Array {
  const first = Math.max(0, cache.length - window);
  const rows = new Float64Array(cache.length - first);
  for (let j = 0; j < rows.length; j++) rows[j] = cache.offset(first + j);
  return rows;
}

/** Softmax over scale · q·k, soft-capped, one share for each of `rows`. */
function attentionShares(
  { headDim, scale, softcap }: StepOf<'attend'>,
  { keys }: KvCache,
  rows: Float64Array,
  q: Float32Array,
  head: number,
  kvHead: number,
): Float64Array {
  const scores = new Float64Array(rows.length);
  for (let j = 0; j < rows.length; j++) {
    const score = scale * dot(keys, rows[j]! + kvHead, q, head * headDim, headDim);
    scores[j] = softcap ? softcap * Math.tanh(score / softcap) : score;
  }
  softmax(scores);
  return scores;
}

function cacheOf(state: StepState, cache: number): KvCache {
  const found = state.caches.get(cache);
  if (!found) throw new CflowError('INTERNAL', `the plan uses cache ${cache}, which it does not declare`);
  return found;
}

function expertTensors(layer: number, expert: number, weights: WeightStore) {
  return (projection: string) => {
    const stream = streamName.expert(layer, expert);
    const ref: WeightRef = { stream, tensor: `${stream}.${projection}.weight` };
    return weights.tensor(ref);
  };
}

function transferKey(target: TransferTarget): string {
  if (target.kind === 'stream') return target.stream;
  return `${target.predicted ? 'predicted ' : ''}experts of layer ${target.layer}`;
}

/** The streams behind a target; for experts, those of the routing as it stands when the fetch starts. */
function targetStreams(target: TransferTarget, state: StepState): string[] {
  if (target.kind === 'stream') return [target.stream];
  const routing = state.buffer(target.routing);
  const chosen = [...routing.subarray(0, routing.length / 2)];
  return chosen.map((expert) => streamName.expert(target.layer, expert));
}
