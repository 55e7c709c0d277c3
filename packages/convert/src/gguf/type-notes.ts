/** What is said of tensors whose type is not that of the output. */
import { type Dtype, elements, modelTensors } from '@cflow/format';
import type { TensorTypeName } from './schema.js';
import { dtypeOf, type GgufModel } from './source.js';

/** Types whose every value an output dtype holds. */
const EXACT: Readonly<Record<Dtype, readonly TensorTypeName[]>> = {
  f32: ['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0'],
  f16: ['F16'],
  q8_0: ['Q8_0'],
  q4_0: ['Q4_0'],
};

/**
 * What becomes of matrices whose type is not that of the output: a line each and the total, or the total alone where
 * the dtype was asked for.
 */
export function typeNotes({ config, tensors, dtype: usual }: GgufModel, asked: Dtype | undefined): string[] {
  const dtype = asked ?? usual;
  const changed = new Map<string, { type: TensorTypeName; weights: number }>();
  let all = 0;
  for (const spec of modelTensors(config)) {
    if (!spec.matrix) continue;
    const { name, type } = tensors.get(spec.name)!;
    const weights = elements(spec.shape);
    all += weights;
    if (dtypeOf(type) === dtype) continue;
    changed.set(name, { type, weights: (changed.get(name)?.weights ?? 0) + weights });
  }
  if (changed.size === 0) return [];
  const lines = [...changed].map(([name, { type }]) => {
    return `${name}: ${type} becomes ${dtype}${EXACT[dtype].includes(type) ? ', exactly' : ', rounded anew'}`;
  });
  const weights = [...changed.values()].reduce((sum, each) => sum + each.weights, 0);
  const count = changed.size === 1 ? '1 tensor changes its' : `${changed.size} tensors change their`;
  const share = ((100 * weights) / all).toFixed(1);
  const advice = asked || dtype === 'f32' ? '' : '; --dtype f32 keeps all of them';
  const total = `${count} type to ${dtype}: ${share} % of the weights${advice}`;
  return asked ? [total] : [...lines, total];
}
