/** Keys of a file's architecture that nothing was computed by: neutral, without effect, or refused. */
import { CflowError } from '@cflow/format';
import { listOf } from '../sources/shards.js';
import type { Architecture } from './architectures.js';
import type { GgufScalar, GgufValue } from './schema.js';

/** A key that the configuration may not use. */
interface Unused {
  /** Values that change nothing; absent: every value. */
  readonly neutral?: readonly GgufScalar[];
  /** Any other value makes llama.cpp compute another model. */
  readonly computes?: true;
}

/** By the key behind the architecture's name; one without a row has no neutral value. */
const UNUSED: Readonly<Record<string, Unused>> = {
  vocab_size: {},
  tensor_data_layout: {},
  // Said for the reader; what YaRN computes by is used.
  'rope.scaling.finetuned': {},
  'rope.scaling.original_context_length': {},
  'attention.causal': { neutral: [true], computes: true },
  'attention.clamp_kqv': { neutral: [0], computes: true },
  'attention.max_alibi_bias': { neutral: [0], computes: true },
  // llama.cpp takes a scale of 0 for none.
  logit_scale: { neutral: [0, 1], computes: true },
  embedding_scale: { neutral: [0, 1], computes: true },
  residual_scale: { neutral: [0, 1], computes: true },
  'rope.scaling.attn_factor': { neutral: [1], computes: true },
  'rope.scaling.yarn_attn_factor': { neutral: [-1, 1], computes: true },
  'rope.scaling.yarn_ext_factor': { neutral: [-1] },
  'rope.scaling.yarn_log_multiplier': { neutral: [0] },
  'attention.scale': { neutral: [0] },
  attn_logit_softcapping: { neutral: [0] },
  router_logit_softcapping: { neutral: [0] },
  use_parallel_residual: { neutral: [false] },
  'attention.sliding_window': { neutral: [0] },
  expert_used_count: { neutral: [0] },
  expert_feed_forward_length: { neutral: [0] },
  expert_shared_count: { neutral: [0] },
  expert_shared_feed_forward_length: { neutral: [0] },
  expert_group_count: { neutral: [0, 1] },
  expert_group_used_count: { neutral: [0, 1] },
  expert_weights_scale: { neutral: [0, 1] },
  leading_dense_block_count: { neutral: [0] },
  nextn_predict_layers: { neutral: [0] },
  pooling_type: { neutral: [0] },
};
const NOTHING_NEUTRAL: Unused = { neutral: [] };
/** Characters of a value in messages. */
const MOST_SHOWN = 60;

/**
 * What is said of the keys that were not used; nothing where all of them are neutral.
 * @param used whole keys
 * @throws CflowError UNSUPPORTED for one by which llama.cpp computes another model
 */
export function unusedKeyNotes(
  { name }: Architecture,
  metadata: ReadonlyMap<string, GgufValue>,
  used: ReadonlySet<string>,
  file: string,
): string[] {
  const prefix = `${name}.`;
  const idle: string[] = [];
  for (const [field, value] of metadata) {
    if (!field.startsWith(prefix) || used.has(field)) continue;
    const key = field.slice(prefix.length);
    const { neutral, computes } = Object.hasOwn(UNUSED, key) ? UNUSED[key]! : NOTHING_NEUTRAL;
    if (!neutral || each(value).every((item) => neutral.includes(item))) continue;
    const shown = JSON.stringify(value).slice(0, MOST_SHOWN);
    if (computes) {
      throw new CflowError('UNSUPPORTED', `${shown} makes another model, which is not computed here`, {
        file,
        field,
        value,
        limit: neutral,
        remedy: 'convert the checkpoint itself with cflow-convert',
      });
    }
    idle.push(`${field} = ${shown}`);
  }
  return idle.length ? [`keys without effect: ${listOf(idle, ', ')}`] : [];
}

const each = (value: GgufValue): readonly GgufScalar[] => (typeof value === 'object' ? value : [value]);
