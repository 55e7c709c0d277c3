/** RoPE in config.json: the spellings of transformers 4 and 5, which also occur together. */
import { CflowError, type ModelConfigInput } from '@cflow/format';
import { z } from 'zod';
import { isJsonObject, type JsonObject } from '../json.js';
import type { ConfigLedger } from './config-ledger.js';
import { lookUp, readFields } from './family.js';

type RopeInput = NonNullable<ModelConfigInput['layers'][number]['attention']['rope']>;

const positive = z.number().positive();
const length = z.int().min(1);

/** Fields that a family with RoPE adds to its schema. */
export const ropeFields = {
  max_position_embeddings: z.preprocess(
    (value) => (typeof value === 'number' && value <= 0 ? undefined : value),
    length.nullish(),
  ),
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
  /** Dimensions of a head, and the part of them that rotates. */
  headDim: number;
  partial: number;
  file: string;
}
interface ReadScaling {
  scaling?: RopeInput['scaling'];
  attentionFactor?: number;
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

/** Where a rotation is read from. */
interface RopeQuestion {
  readonly json: RopeJson;
  readonly headDim: number;
  readonly defaults: RopeDefaults;
  readonly type: LayerType;
  readonly file: string;
  readonly ledger: ConfigLedger;
}

/** What a parameter may be called, whatever the scaling; anything else is a misspelling. */
const PARAMETERS = new Set([
  'rope_type',
  'type',
  'rope_theta',
  'partial_rotary_factor',
  'factor',
  'low_freq_factor',
  'high_freq_factor',
  'original_max_position_embeddings',
  'attention_factor',
  'beta_fast',
  'beta_slow',
  'mscale',
  'mscale_all_dim',
  'truncate',
  // Sections of positions that are the same for text, and what training tools leave behind.
  'mrope_section',
  'mrope_interleaved',
  'finetuned',
]);
const UNSCALED = ['default', 'mrope'];
/** Parameters that mean something without scaling. */
const PLAIN = [
  'rope_type',
  'type',
  'rope_theta',
  'partial_rotary_factor',
  'mrope_section',
  'mrope_interleaved',
  'finetuned',
];

/**
 * What `rope_scaling`, `rope_parameters` and the top level say together; what stands nowhere is the default of the class,
 * and that is said. Parameters by kind of layer are seen by their keys.
 * @throws CflowError CONFIG_INVALID for values that contradict each other, unknown parameters, a factor without a type;
 *   UNSUPPORTED for a rope_type without a row here
 */
export function ropeFrom({ json, headDim, defaults, type, file, ledger }: RopeQuestion): ReadRope {
  ledger.use('rope_parameters', 'rope_scaling');
  const { parameters, field, theta } = parametersOf(json, defaults, type, file);
  const p = readFields(parametersSchema, parameters, `${file}: ${field}`);
  const contextLength = json.max_position_embeddings ?? defaults.contextLength;
  const name = scalingName(parameters, field, file);
  const scaling = lookUp(SCALINGS, name, `${field}.rope_type`, file);
  if (UNSCALED.includes(name)) {
    const idle = Object.keys(parameters).filter((key) => !PLAIN.includes(key) && parameters[key] !== null);
    if (idle.length > 0)
      ledger.say(`config.json: ${field}: ${idle.join(', ')} without effect for ${name}: ignored`);
  }
  const partial =
    agreed('partial_rotary_factor', p.partial_rotary_factor, json.partial_rotary_factor, field, file) ?? 1;
  if (partial !== 1 && name !== 'proportional') idlePartial(name, partial, file, ledger);
  if (name === 'dynamic') ledger.say(DYNAMIC);
  const read = scaling({ parameters, json, contextLength, headDim, partial, file: `${file}: ${field}` });
  const { attentionFactor = 1 } = read;
  const stated = agreed('rope_theta', p.rope_theta, theta.stated, field, file);
  if (stated === undefined) ledger.defaulted('rope_theta', theta.otherwise);
  return {
    rope: {
      theta: stated ?? theta.otherwise,
      rotaryDim: headDim,
      ...(read.scaling && { scaling: read.scaling }),
    },
    attentionFactor,
  };
}

const DYNAMIC =
  'config.json: rope_type dynamic: beyond max_position_embeddings the base grows with each position; transformers takes that of the last for the whole prompt';

/** Without scaling, classes of transformers rotate the whole head; with one they fail. @throws CflowError UNSUPPORTED */
function idlePartial(name: string, partial: number, file: string, ledger: ConfigLedger): void {
  const field = 'partial_rotary_factor';
  if (UNSCALED.includes(name)) {
    ledger.say(`config.json: ${field} ${partial} without effect: heads rotate as a whole: ignored`);
    return;
  }
  throw new CflowError('UNSUPPORTED', `${partial} with rope_type ${name}`, {
    file,
    field,
    value: partial,
    limit: 1,
    remedy: 'only proportional rotates a part of a head: state 1, or another rope_type',
  });
}

/** One value of two places. @throws CflowError CONFIG_INVALID if they differ */
function agreed(
  key: string,
  inside: number | null | undefined,
  outside: number | null | undefined,
  field: string,
  file: string,
): number | undefined {
  if (inside != null && outside != null && inside !== outside) {
    throw new CflowError('CONFIG_INVALID', `${inside}, but ${key} is ${outside} outside of it`, {
      file,
      field: `${field}.${key}`,
      value: inside,
      remedy: 'leave the right one',
    });
  }
  return inside ?? outside ?? undefined;
}

/** `rope_type`, or `type` as it was called before. @throws CflowError CONFIG_INVALID */
function scalingName(parameters: JsonObject, field: string, file: string): string {
  const unknown = Object.keys(parameters).find((key) => !PARAMETERS.has(key));
  if (unknown !== undefined) {
    throw new CflowError('CONFIG_INVALID', 'not a parameter of the rotation', {
      file,
      field: `${field}.${unknown}`,
      value: unknown,
      limit: [...PARAMETERS],
      remedy: `known are ${[...PARAMETERS].join(', ')}`,
    });
  }
  const names = [parameters.rope_type, parameters.type].filter((name) => typeof name === 'string');
  const [first, second] = names.map((name) => (UNSCALED.includes(name) ? 'default' : name));
  if (first !== undefined && second !== undefined && first !== second) {
    throw new CflowError('CONFIG_INVALID', `rope_type is ${names[0]}, but type is ${names[1]}`, {
      file,
      field: `${field}.rope_type`,
      value: names,
      remedy: 'leave the right one',
    });
  }
  if (first !== undefined) return names[0]!;
  const idle = Object.keys(parameters).find((key) => !PLAIN.includes(key) && parameters[key] !== null);
  if (idle === undefined) return 'default';
  throw new CflowError('CONFIG_INVALID', `${idle} without a type of scaling`, {
    file,
    field: `${field}.rope_type`,
    limit: Object.keys(SCALINGS),
    remedy: `state one of ${Object.keys(SCALINGS).join(', ')}`,
  });
}

interface Parameters {
  readonly parameters: JsonObject;
  readonly field: string;
  /** Outside of the parameters, and where nothing is stated at all. */
  readonly theta: { readonly stated: number | null | undefined; readonly otherwise: number };
}

function parametersOf(json: RopeJson, defaults: RopeDefaults, type: LayerType, file: string): Parameters {
  const own = defaults.parameters[type];
  const given = json.rope_parameters as JsonObject | null | undefined;
  const scaling = json.rope_scaling as JsonObject | null | undefined;
  const perType = defaults.parameters.full_attention !== defaults.parameters.sliding_attention;
  const full = type === 'full_attention';
  const outside = perType && !full ? json.rope_local_base_freq : json.rope_theta;
  const theta = { stated: outside, otherwise: own.rope_theta };
  if (isPerType(given)) {
    const inside = isJsonObject(given[type] ?? null) ? (given[type] as JsonObject) : withoutTheta(own);
    // Gemma 3 of transformers 4 with both: the scaling is that of the full layers.
    const parameters = full && scaling ? merged(inside, scaling, file) : inside;
    return { parameters, field: `rope_parameters.${type}`, theta };
  }
  if (perType && !full) return { parameters: withoutTheta(own), field: 'rope_parameters', theta };
  const stated = given && Object.keys(given).length > 0 ? given : undefined;
  const scaled = scaling && Object.keys(scaling).length > 0 ? scaling : undefined;
  if (stated && scaled) return { parameters: merged(stated, scaled, file), field: 'rope_scaling', theta };
  return {
    parameters: scaled ?? stated ?? withoutTheta(own),
    field: scaled ? 'rope_scaling' : 'rope_parameters',
    theta,
  };
}

/** `rope_scaling` over `rope_parameters`: whoever adds scaling to a file of transformers 5 writes both. */
function merged(parameters: JsonObject, scaling: JsonObject, file: string): JsonObject {
  const { rope_type, type, ...rest } = parameters;
  const plain = [rope_type, type].every((name) => name == null || UNSCALED.includes(String(name)));
  const under = plain ? rest : parameters;
  for (const [key, value] of Object.entries(scaling)) {
    const other = under[key];
    if (value === null || other == null || String(other) === String(value)) continue;
    throw new CflowError('CONFIG_INVALID', `${String(value)}, but ${String(other)} in rope_parameters`, {
      file,
      field: `rope_scaling.${key}`,
      value,
      remedy: 'leave the right one',
    });
  }
  const said = Object.fromEntries(Object.entries(scaling).filter(([, value]) => value !== null));
  return { ...under, ...said } as JsonObject;
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
