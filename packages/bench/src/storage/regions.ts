/** Which regions of a file a pass reads, and in which order. */
import { buildPlan, type ModelFile, type Region } from '@cflow/format';
import { randomGenerator } from '@cflow/runtime-native';

export const ORDERS = ['file', 'plan'] as const;
export type Order = (typeof ORDERS)[number];

/** `file`: all streams as they lie. `plan`: what one token asks for, as it asks, with experts drawn at random. */
export function regionsInOrder(file: ModelFile, order: Order, seed = 1): Region[] {
  return order === 'file' ? fileOrder(file) : planOrder(file, seed);
}

function fileOrder({ streams }: ModelFile): Region[] {
  return [...streams.values()].sort((a, b) => a.offset - b.offset);
}

function planOrder({ config, streams }: ModelFile, seed: number): Region[] {
  const random = randomGenerator(seed);
  const named = (name: string) => streams.get(name)!;
  return buildPlan(config, { transfers: 'overlap' }).steps.flatMap((step) => {
    if (step.op !== 'call') return [];
    const { target } = step;
    if (target.kind === 'stream') return [named(target.stream)];
    const { count, topK } = config.layers[target.layer]!.experts!;
    return chosen(count, topK, () => random.next()).map((expert) =>
      named(`layers.${target.layer}.experts.${expert}`),
    );
  });
}

/** `k` of `count`, ascending. */
function chosen(count: number, k: number, random: () => number): number[] {
  const left = Array.from({ length: count }, (_, i) => i);
  const taken = Array.from({ length: k }, () => left.splice(Math.floor(random() * left.length), 1)[0]!);
  return taken.sort((a, b) => a - b);
}
