/** RoPE in config.json: the spellings of transformers 4 and 5, which also occur together. */
import type { ModelConfigInput } from '@cflow/format';
import { z } from 'zod';
import type { JsonObject } from '../json.js';
import { lookUp, readFields } from './family.js';

type RopeInput = NonNullable<ModelConfigInput['layers'][number]['attention']['rope']>;

const positive = z.number().positive();
const length = z.int().min(1);

/** Fields that a family with RoPE adds to its schema. */
export const ropeFields = {
  max_position_embeddings: length.nullish(),
  original_max_position_embeddings: length.nullish(),
  partial_rotary_factor: positive.max(1).nullish(),
  rope_theta: positive.nullish(),
  rope_scaling: z.record(z.string(), z.unknown()).nullish(),
  rope_parameters: z.record(z.string(), z.unknown()).nullish(),
};
const ropeSchema = z.object(ropeFields);
type RopeJson = z.output<typeof ropeSchema>;

const parametersSchema = z.looseObject({
  rope_type: z.string().nullish(),
  type: z.string().nullish(),
  rope_theta: positive.nullish(),
  partial_rotary_factor: positive.max(1).nullish(),
});
const linearSchema = z.object({ factor: positive });
const llama3Schema = z.object({
  factor: positive,
  low_freq_factor: positive,
  high_freq_factor: positive,
  original_max_position_embeddings: length.nullish(),
});

interface ScalingSource {
  parameters: JsonObject;
  json: RopeJson;
  contextLength: number;
  file: string;
}

/** Scaling by `rope_type`; what is not here is refused by name. */
const SCALINGS: Readonly<Record<string, (source: ScalingSource) => RopeInput['scaling']>> = {
  default: () => undefined,
  linear: ({ parameters, file }) => ({
    type: 'linear',
    factor: readFields(linearSchema, parameters, file).factor,
  }),
  llama3: ({ parameters, json, contextLength, file }) => {
    const p = readFields(llama3Schema, parameters, file);
    return {
      type: 'llama3',
      factor: p.factor,
      lowFreqFactor: p.low_freq_factor,
      highFreqFactor: p.high_freq_factor,
      originalContextLength:
        json.original_max_position_embeddings ?? p.original_max_position_embeddings ?? contextLength,
    };
  },
};

/**
 * A non-null `rope_scaling` takes the place of `rope_parameters`; what stands inside wins over the top level, and that
 * over the default of the class.
 * @throws CflowError UNSUPPORTED for a rope_type without a row here
 */
export function ropeFrom(
  json: RopeJson,
  headDim: number,
  defaults: { theta: number; contextLength: number },
  file: string,
): RopeInput {
  const parameters = (json.rope_scaling ?? json.rope_parameters ?? {}) as JsonObject;
  const field = json.rope_scaling ? 'rope_scaling' : 'rope_parameters';
  const p = readFields(parametersSchema, parameters, `${file}: ${field}`);
  const type = p.rope_type ?? p.type ?? 'default';
  const contextLength = json.max_position_embeddings ?? defaults.contextLength;
  const scaling = lookUp(SCALINGS, type, `${field}.rope_type`, file);
  const scaled = scaling({ parameters, json, contextLength, file: `${file}: ${field}` });
  return {
    theta: p.rope_theta ?? json.rope_theta ?? defaults.theta,
    rotaryDim: Math.trunc(headDim * (p.partial_rotary_factor ?? json.partial_rotary_factor ?? 1)),
    ...(scaled && { scaling: scaled }),
  };
}
