/** RoPE in config.json: the spellings of transformers 4 and 5, which also occur together. */
import { CflowError, type ModelConfigInput } from '@cflow/format';
import { z } from 'zod';
import { isJsonObject, type JsonObject } from '../json.js';
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
  rope_local_base_freq: positive.nullish(),
  rope_scaling: z.record(z.string(), z.unknown()).nullish(),
  rope_parameters: z.record(z.string(), z.unknown()).nullish(),
};
const ropeSchema = z.object(ropeFields);
type RopeJson = z.output<typeof ropeSchema>;

const LAYER_TYPES = ['full_attention', 'sliding_attention', 'chunked_attention'] as const;
export type LayerType = 'full_attention' | 'sliding_attention';

/** What a family's class says where config.json is silent. */
export interface RopeDefaults {
  readonly contextLength: number;
  /** By kind of layer, as `rope_parameters` would say it. */
  readonly parameters: Readonly<Record<LayerType, { readonly rope_theta: number } & JsonObject>>;
}

/** Rotation, and what it multiplies cosines and sines by. */
export interface ReadRope {
  readonly rope: RopeInput;
  readonly attentionFactor: number;
}

const parametersSchema = z.looseObject({
  rope_type: z.string().nullish(),
  type: z.string().nullish(),
  rope_theta: positive.nullish(),
  partial_rotary_factor: positive.max(1).nullish(),
});
const factorSchema = z.object({ factor: positive });
const llama3Schema = z.object({
  factor: positive,
  low_freq_factor: positive,
  high_freq_factor: positive,
  original_max_position_embeddings: length.nullish(),
});
const yarnSchema = z.object({
  factor: positive.nullish(),
  original_max_position_embeddings: length.nullish(),
  attention_factor: positive.nullish(),
  mscale: z.number().nullish(),
  mscale_all_dim: z.number().nullish(),
  beta_fast: positive.nullish(),
  beta_slow: positive.nullish(),
  truncate: z.boolean().nullish(),
});

interface ScalingSource {
  parameters: JsonObject;
  json: RopeJson;
  contextLength: number;
  /** Dimensions of a head, and those that rotate. */
  headDim: number;
  partial: number;
  file: string;
}
interface ReadScaling {
  scaling?: RopeInput['scaling'];
  attentionFactor?: number;
  /** Rotating dimensions if not the partial ones. */
  rotaryDim?: number;
}

/** Scaling by `rope_type`; what is not here is refused by name. */
const SCALINGS: Readonly<Record<string, (source: ScalingSource) => ReadScaling>> = {
  default: () => ({}),
  // Positions of text are the same in all sections.
  mrope: () => ({}),
  linear: ({ parameters, file }) => ({
    scaling: { type: 'linear', factor: readFields(factorSchema, parameters, file).factor },
  }),
  llama3: (source) => {
    const p = readFields(llama3Schema, source.parameters, source.file);
    return {
      scaling: {
        type: 'llama3',
        factor: p.factor,
        lowFreqFactor: p.low_freq_factor,
        highFreqFactor: p.high_freq_factor,
        originalContextLength: originalContext(source, p),
      },
    };
  },
  yarn: readYarn,
  dynamic: ({ parameters, contextLength, file }) => ({
    scaling: {
      type: 'dynamic',
      factor: readFields(factorSchema, parameters, file).factor,
      originalContextLength: contextLength,
    },
  }),
  proportional: ({ parameters, headDim, partial, file }) => ({
    scaling: {
      type: 'proportional',
      pairs: Math.floor((partial * headDim) / 2),
      factor: readFields(factorSchema.partial(), parameters, file).factor ?? 1,
    },
    rotaryDim: headDim,
  }),
};

function originalContext(
  { json, contextLength }: ScalingSource,
  { original_max_position_embeddings: own }: { original_max_position_embeddings?: number | null | undefined },
): number {
  return json.original_max_position_embeddings ?? own ?? contextLength;
}

function readYarn(source: ScalingSource): ReadScaling {
  const p = readFields(yarnSchema, source.parameters, source.file);
  const originalContextLength = originalContext(source, p);
  const factor = p.factor ?? source.contextLength / originalContextLength;
  const mscale = (weight = 1) => (factor <= 1 ? 1 : 0.1 * weight * Math.log(factor) + 1);
  const { mscale: own, mscale_all_dim: all } = p;
  return {
    scaling: {
      type: 'yarn',
      factor,
      originalContextLength,
      betaFast: p.beta_fast ?? 32,
      betaSlow: p.beta_slow ?? 1,
      truncate: p.truncate ?? true,
    },
    attentionFactor: p.attention_factor ?? (own && all ? mscale(own) / mscale(all) : mscale()),
  };
}

/**
 * A non-null `rope_scaling` takes the place of `rope_parameters`; what stands inside wins over the top level, and that
 * over the default of the class. Parameters by kind of layer are seen by their keys.
 * @throws CflowError UNSUPPORTED for a rope_type without a row here
 */
export function ropeFrom(
  json: RopeJson,
  headDim: number,
  defaults: RopeDefaults,
  type: LayerType,
  file: string,
): ReadRope {
  const { parameters, field, theta } = parametersOf(json, defaults, type);
  const p = readFields(parametersSchema, parameters, `${file}: ${field}`);
  const contextLength = json.max_position_embeddings ?? defaults.contextLength;
  const scaling = lookUp(SCALINGS, p.rope_type ?? p.type ?? 'default', `${field}.rope_type`, file);
  const partial = p.partial_rotary_factor ?? json.partial_rotary_factor ?? 1;
  const read = scaling({ parameters, json, contextLength, headDim, partial, file: `${file}: ${field}` });
  const rotaryDim = read.rotaryDim ?? Math.trunc(headDim * partial);
  const { attentionFactor = 1 } = read;
  if (attentionFactor !== 1 && rotaryDim !== headDim) {
    throw new CflowError('UNSUPPORTED', 'an attention factor with partial rotation', { file, field });
  }
  return {
    rope: { theta: p.rope_theta ?? theta, rotaryDim, ...(read.scaling && { scaling: read.scaling }) },
    attentionFactor,
  };
}

interface Parameters {
  parameters: JsonObject;
  field: string;
  /** Used where the parameters state none. */
  theta: number;
}

function parametersOf(json: RopeJson, defaults: RopeDefaults, type: LayerType): Parameters {
  const own = defaults.parameters[type];
  const given = json.rope_parameters as JsonObject | null | undefined;
  const scaling = json.rope_scaling as JsonObject | null | undefined;
  if (isPerType(given)) {
    const inside = (isJsonObject(given[type] ?? null) ? given[type] : own) as JsonObject;
    // Gemma 3 of transformers 4 with both: the scaling is that of the full layers.
    const merged = type === 'full_attention' && scaling ? { ...inside, ...scaling } : inside;
    return { parameters: merged, field: `rope_parameters.${type}`, theta: own.rope_theta };
  }
  const perType = defaults.parameters.full_attention !== defaults.parameters.sliding_attention;
  if (perType && type === 'sliding_attention') {
    return {
      parameters: withoutTheta(own),
      field: 'rope_parameters',
      theta: json.rope_local_base_freq ?? own.rope_theta,
    };
  }
  const field = scaling ? 'rope_scaling' : 'rope_parameters';
  return {
    parameters: scaling ?? given ?? withoutTheta(own),
    field,
    theta: json.rope_theta ?? own.rope_theta,
  };
}

function withoutTheta({ rope_theta: _, ...rest }: JsonObject): JsonObject {
  return rest;
}

function isPerType(parameters: JsonObject | null | undefined): parameters is JsonObject {
  const keys = Object.keys(parameters ?? {});
  return keys.length > 0 && keys.every((key) => (LAYER_TYPES as readonly string[]).includes(key));
}

/** Positions that a model is made for: scaling beyond `max_position_embeddings` counts where it is meant so. */
export function scaledContext(contextLength: number, ropes: readonly (RopeInput | undefined)[]): number {
  const reach = ropes.map((rope) => {
    const scaling = rope?.scaling;
    if (scaling?.type !== 'yarn' && scaling?.type !== 'dynamic') return 0;
    return Math.floor(scaling.factor * scaling.originalContextLength);
  });
  return reach.reduce((most, own) => Math.max(most, own), contextLength);
}
