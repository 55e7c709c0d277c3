import { z } from 'zod';
import { CflowError } from '../errors.js';
import {
  MAX_COLUMNS,
  MAX_DELAY,
  MAX_EXPERTS,
  MAX_KV_HEADS,
  MAX_LAYERS,
  MAX_Q_HEADS,
  MAX_VOCAB,
} from '../limits.js';

const count = (max: number) => z.int().min(1).max(max);

/** How FFN and expert outputs join the residual; `id` is the header's combine_style (report §4.2.3, §4.3). */
export const COMBINE_STYLES = {
  parallelSqrt2: 0,
  delayedSum: 1,
  asyncExperts: 2,
  sequential: 3,
  decoupledStreams: 4,
  pipelineRegisters: 5,
  fixedPoint: 6,
} as const;
/** How a layer puts attention, FFN and experts together. */
export type CombineStyle = keyof typeof COMBINE_STYLES;
/** The combine styles, in the order of their ids. */
export const COMBINE_STYLE_NAMES = Object.keys(COMBINE_STYLES) as CombineStyle[];

/** Activations of the gate: exact GELU, its approximation by tanh, SiLU. */
export const ACTIVATIONS = ['gelu', 'gelu_tanh', 'silu'] as const;
/** One of `ACTIVATIONS`. */
export type Activation = (typeof ACTIVATIONS)[number];

const ropeScaling = z.discriminatedUnion('type', [
  z.strictObject({
    /** Frequencies are divided by the factor. */
    type: z.literal('linear'),
    /** Divides every frequency. */
    factor: z.number().positive(),
  }),
  z.strictObject({
    /** Long waves are divided by the factor, short ones kept, those between interpolated by their turns. */
    type: z.literal('llama3'),
    /** Divides the frequencies of long waves. */
    factor: z.number().positive(),
    /** Turns within the original context up to which a wave is divided. */
    lowFreqFactor: z.number().positive(),
    /** Turns within the original context from which on a wave is kept; more than lowFreqFactor. */
    highFreqFactor: z.number().positive(),
    /** Tokens that turns are counted over. */
    originalContextLength: count(2 ** 31),
  }),
  z.strictObject({
    /** Long waves are divided by the factor, short ones kept, those between blended over the dimensions. */
    type: z.literal('yarn'),
    /** Divides the frequencies of long waves. */
    factor: z.number().positive(),
    /** Tokens that turns are counted over. */
    originalContextLength: count(2 ** 31),
    /** Turns within the original context from which on a wave is kept. */
    betaFast: z.number().positive(),
    /** Turns within the original context below which a wave is divided. */
    betaSlow: z.number().positive(),
    /** Round the blended range outwards to whole dimensions. */
    truncate: z.boolean(),
  }),
  z.strictObject({
    /** From originalContextLength on the base grows with the position. */
    type: z.literal('dynamic'),
    /** How fast the base grows. */
    factor: z.number().min(1),
    /** Position from which on it grows. */
    originalContextLength: count(2 ** 31),
  }),
  z.strictObject({
    /** Only the first `pairs` pairs rotate; exponents count over all of rotaryDim. */
    type: z.literal('proportional'),
    /** Pairs that rotate; twice as many dimensions are at most rotaryDim. */
    pairs: count(MAX_COLUMNS),
    /** Divides their frequencies. */
    factor: z.number().positive(),
  }),
]);

/** Rotary embedding, split-half convention: dimension i pairs with i + rotaryDim/2 (report §3.7.2). */
const rope = z.strictObject({
  /** Base of the frequencies: θ^(−2i/rotaryDim) radians a position for pair i. */
  theta: z.number().positive(),
  /** Leading dimensions of a head that rotate; even, at most headDim. */
  rotaryDim: count(MAX_COLUMNS),
  /** How frequencies are scaled; absent = not at all. */
  scaling: ropeScaling.optional(),
});

const attention = z.strictObject({
  /** Query heads; heads × headDim is at most 1,048,576. */
  heads: count(MAX_Q_HEADS),
  /** Key/value heads; divides heads. Query head h reads key/value head ⌊h · kvHeads / heads⌋. */
  kvHeads: count(MAX_KV_HEADS),
  /** Dimensions of a head. */
  headDim: count(MAX_COLUMNS),
  /** Keys visible to a query, itself included; absent = all. */
  slidingWindow: count(2 ** 31).optional(),
  /** Absent = no rotation. */
  rope: rope.optional(),
  /** Multiplies q·k; 1/√headDim unless the family says otherwise. */
  scale: z.number().positive(),
  /** c·tanh(score/c) before the softmax; absent = off. */
  softcap: z.number().positive().optional(),
  /** RMSNorm of q and k before RoPE, per head or over the whole projection. */
  qkNorm: z.enum(['none', 'head', 'whole']).default('none'),
  /** q, k and v are clamped to ±clipQkv behind their norms, before RoPE; absent = off. */
  clipQkv: z.number().positive().optional(),
  /** Weightless RMSNorm of each value head before it is cached (report §3.7.3). */
  vNorm: z.boolean().default(false),
  /** Values are the raw keys, before their norm and RoPE; there is no v_proj. */
  valueFromKey: z.boolean().optional(),
  /** Keys and values are those of this earlier layer: no k_proj, v_proj or k_norm, and no cache of its own. */
  kvFrom: z.int().min(0).optional(),
  /** q, k and v projections have biases. */
  biasQkv: z.boolean().default(false),
  /** The output projection has a bias. */
  biasOut: z.boolean().default(false),
});

const ffn = z.strictObject({
  /** Width d_ff of the gated FFN: down(act(gate x) · up x). */
  dim: count(MAX_COLUMNS),
  /** Of the gate. */
  activation: z.enum(ACTIVATIONS),
  /** gate, up and down have biases. */
  bias: z.boolean().default(false),
});

const experts = z.strictObject({
  /** Experts of the layer. */
  count: count(MAX_EXPERTS),
  /** Experts that a token chooses; at most count. */
  topK: count(MAX_EXPERTS),
  /** Width of an expert, which is a gated FFN without biases. */
  dim: count(MAX_COLUMNS),
  /** Of the gates. */
  activation: z.enum(ACTIVATIONS),
  /** true: the weights of the chosen sum to 1 (softmax over the chosen k); false: raw softmax over all experts. */
  normalizeTopK: z.boolean().default(true),
  /** Norms of their own: of the experts' input, of their output, and of the output of the FFN beside them. */
  ownNorms: z.boolean().optional(),
  /** The router reads routerScale · norm(residual) with a norm of its own, not what the experts read. */
  routerNorm: z.boolean().optional(),
  /** Multiplies what the router reads; needs routerNorm. Absent = 1. */
  routerScale: z.number().positive().optional(),
  /** Stored factors of the chosen weights, one per expert. */
  expertScale: z.boolean().optional(),
});

/** The places of a layer that a norm of the residual's width may have: before and after attention, before and after FFN and experts. */
export interface NormPlaces {
  /** `attn_norm` on the input of attention. */
  readonly attnIn: boolean;
  /** `attn_post_norm` on the output of attention, before it is added to the residual. */
  readonly attnOut: boolean;
  /** `ffn_norm` on what FFN and experts read. */
  readonly ffnIn: boolean;
  /** `ffn_post_norm` on the output of FFN and experts together, before it is added to the residual. */
  readonly ffnOut: boolean;
}

/** Where the layers of a style are normed; which tensors there are, and which steps, follows from the row. */
export const NORM_STYLES = {
  pre: { attnIn: true, attnOut: false, ffnIn: true, ffnOut: false },
  post: { attnIn: false, attnOut: true, ffnIn: false, ffnOut: true },
  sandwich: { attnIn: true, attnOut: true, ffnIn: true, ffnOut: true },
} as const satisfies Readonly<Record<string, NormPlaces>>;
/** One of `NORM_STYLES`. */
export type NormStyle = keyof typeof NORM_STYLES;

const layer = z.strictObject({
  /** Every layer has it. */
  attention,
  /** The dense FFN; a layer has one, experts, or both. */
  ffn: ffn.optional(),
  /** The routed experts. */
  experts: experts.optional(),
  /** Where both blocks are normed: on their inputs, on their outputs, or on both. Absent = pre. */
  norms: z.enum(Object.keys(NORM_STYLES) as [NormStyle, ...NormStyle[]]).optional(),
  /** The residual after the layer is multiplied by a stored number. */
  outputScale: z.boolean().optional(),
});

/** Everything about a model that changes what is computed. One schema for presets, metadata and converters. */
export const modelConfigSchema = z
  .strictObject({
    /** A preset's name, or the directory or repository that the model came from. */
    name: z.string().min(1).max(256),
    /** Model type of the source, e.g. `llama`; `cflow` for the report's own models. */
    family: z.string().min(1).max(64),
    /** d, the width of the residual. */
    hiddenDim: count(MAX_COLUMNS),
    /** Rows of embedding and LM head. */
    vocabSize: count(MAX_VOCAB),
    /** Positions that the model was made for. */
    contextLength: count(2 ** 31),
    /** ε of every RMSNorm. */
    normEps: z.number().positive().max(1),
    /** The LM head is the embedding. */
    tiedEmbeddings: z.boolean().default(false),
    /** Every layer gets `dim` more inputs of a token, from a second embedding and from the first. */
    perLayerInput: z
      .strictObject({
        /** Inputs of a layer; layers × dim is at most 1,048,576. */
        dim: count(MAX_COLUMNS),
      })
      .optional(),
    /** Multiply embeddings by √hiddenDim (feature_flags bit 0). */
    scaleEmbeddings: z.boolean().default(false),
    /** c·tanh(logit/c); absent = off. */
    finalLogitSoftcap: z.number().positive().optional(),
    /** How FFN and expert outputs join the residual; section 14. */
    combineStyle: z.enum(COMBINE_STYLE_NAMES as [CombineStyle, ...CombineStyle[]]),
    /** δd: the FFN of layer ℓ reads the output of layer ℓ − δd. */
    denseDelay: z.int().min(0).max(MAX_DELAY).default(0),
    /** δe: expert outputs routed at ℓ are injected at min(ℓ + δe, L − 1). */
    expertDelay: z.int().min(0).max(MAX_DELAY).default(0),
    /** decoupledStreams: merge after every so many layers. */
    mergeInterval: count(MAX_LAYERS).optional(),
    /** fixedPoint: how often each block of weights is iterated. */
    iterations: count(255).optional(),
    /** First token of a prompt; below vocabSize. */
    bosTokenId: z.int().min(0).optional(),
    /** Tokens that end an answer; below vocabSize. */
    eosTokenIds: z.array(z.int().min(0)).max(64).default([]),
    /** One entry per stored layer (per block for fixedPoint). */
    layers: z.array(layer).min(1).max(MAX_LAYERS),
  })
  .superRefine((config, context) => {
    for (const problem of contradictions(config)) {
      context.addIssue({ code: 'custom', message: problem.message, path: problem.path });
    }
  });

/** What a model is, checked and with every default filled in. */
export type ModelConfig = z.infer<typeof modelConfigSchema>;
/** A model as it may be written down: fields that have defaults may be absent. */
export type ModelConfigInput = z.input<typeof modelConfigSchema>;
/** One stored layer. */
export type LayerConfig = ModelConfig['layers'][number];
/** Attention of a layer: heads, rotation, window, norms, biases. */
export type AttentionConfig = LayerConfig['attention'];
/** Rotary embedding of a layer that has one. */
export type RopeConfig = NonNullable<AttentionConfig['rope']>;
/** The dense FFN of a layer that has one. */
export type FfnConfig = NonNullable<LayerConfig['ffn']>;
/** The experts of a layer that has some, and how they are chosen. */
export type ExpertsConfig = NonNullable<LayerConfig['experts']>;

/** Whether a layer has only what the report's layers have: input norms, a router on the experts' input, no scales. */
export function isPlainLayer({ norms, outputScale, experts }: LayerConfig): boolean {
  return (
    (norms ?? 'pre') === 'pre' &&
    !outputScale &&
    !experts?.ownNorms &&
    !experts?.routerNorm &&
    !experts?.expertScale
  );
}

/** Where a layer is normed. */
export const normPlaces = ({ norms = 'pre' }: Pick<LayerConfig, 'norms'>): NormPlaces => NORM_STYLES[norms];

interface Contradiction {
  message: string;
  path: (string | number)[];
}

function* contradictions(config: z.output<z.ZodObject> & Record<string, unknown>): Generator<Contradiction> {
  const c = config as unknown as ModelConfig;
  for (const [index, { attention, ffn, experts }] of c.layers.entries()) {
    const at = (...rest: string[]) => ['layers', index, ...rest];
    if (attention.heads % attention.kvHeads !== 0) {
      yield {
        message: `${attention.heads} query heads are not a multiple of ${attention.kvHeads} key/value heads`,
        path: at('attention', 'kvHeads'),
      };
    }
    if (attention.heads * attention.headDim > MAX_COLUMNS) {
      yield {
        message: `heads × headDim = ${attention.heads * attention.headDim} is over the limit of ${MAX_COLUMNS} columns`,
        path: at('attention', 'headDim'),
      };
    }
    if (attention.rope && (attention.rope.rotaryDim % 2 || attention.rope.rotaryDim > attention.headDim)) {
      yield {
        message: `rotaryDim ${attention.rope.rotaryDim} must be even and at most headDim ${attention.headDim}`,
        path: at('attention', 'rope', 'rotaryDim'),
      };
    }
    const scaling = attention.rope?.scaling;
    if (scaling?.type === 'llama3' && scaling.highFreqFactor <= scaling.lowFreqFactor) {
      yield {
        message: `highFreqFactor ${scaling.highFreqFactor} must be more than lowFreqFactor ${scaling.lowFreqFactor}`,
        path: at('attention', 'rope', 'scaling', 'highFreqFactor'),
      };
    }
    if (scaling?.type === 'proportional' && 2 * scaling.pairs > attention.rope!.rotaryDim) {
      yield {
        message: `${scaling.pairs} pairs are more than rotaryDim ${attention.rope!.rotaryDim} has`,
        path: at('attention', 'rope', 'scaling', 'pairs'),
      };
    }
    if (c.combineStyle !== 'sequential' && !isPlainLayer(c.layers[index]!)) {
      yield {
        message: 'norms, ownNorms, routerNorm, expertScale and outputScale need sequential',
        path: at(),
      };
    }
    const { kvFrom } = attention;
    const giver = kvFrom === undefined ? undefined : c.layers[kvFrom]?.attention;
    const same =
      giver &&
      kvFrom! < index &&
      giver.kvFrom === undefined &&
      giver.kvHeads === attention.kvHeads &&
      giver.headDim === attention.headDim &&
      giver.slidingWindow === attention.slidingWindow;
    if (kvFrom !== undefined && (!same || c.combineStyle !== 'sequential')) {
      yield {
        message: `layer ${kvFrom} is not an earlier sequential layer with keys of its own, of the same shape and window`,
        path: at('attention', 'kvFrom'),
      };
    }
    if (c.perLayerInput && (!ffn || c.combineStyle !== 'sequential')) {
      yield { message: 'perLayerInput needs sequential layers with an ffn', path: at() };
    }
    if (experts?.ownNorms && !ffn) {
      yield { message: 'ownNorms needs an ffn beside the experts', path: at('experts', 'ownNorms') };
    }
    if (experts?.routerScale !== undefined && !experts.routerNorm) {
      yield { message: 'routerScale needs routerNorm', path: at('experts', 'routerScale') };
    }
    if (!ffn && !experts) yield { message: 'a layer needs an ffn, experts, or both', path: at() };
    if (experts && experts.topK > experts.count) {
      yield {
        message: `topK ${experts.topK} is more than ${experts.count} experts`,
        path: at('experts', 'topK'),
      };
    }
  }
  if (c.perLayerInput && c.perLayerInput.dim * c.layers.length > MAX_COLUMNS) {
    yield {
      message: `${c.perLayerInput.dim} × ${c.layers.length} layers are over the limit of ${MAX_COLUMNS} columns`,
      path: ['perLayerInput', 'dim'],
    };
  }
  const streams = c.combineStyle;
  const needsDense =
    streams === 'decoupledStreams' || streams === 'pipelineRegisters' || streams === 'fixedPoint';
  if (needsDense && (c.denseDelay || c.expertDelay || c.layers.some((l) => l.experts || !l.ffn))) {
    yield { message: `${streams} is defined for dense layers without delays only`, path: ['combineStyle'] };
  }
  if (streams === 'sequential' && (c.denseDelay || c.expertDelay)) {
    yield { message: 'sequential layers have no delays; use delayedSum', path: ['combineStyle'] };
  }
  if ((streams === 'decoupledStreams') !== (c.mergeInterval !== undefined)) {
    yield { message: 'mergeInterval belongs to decoupledStreams, and it needs one', path: ['mergeInterval'] };
  }
  if (c.mergeInterval !== undefined && c.layers.length % c.mergeInterval !== 0) {
    yield {
      message: `mergeInterval ${c.mergeInterval} must divide ${c.layers.length} layers, so that the model ends on a merge`,
      path: ['mergeInterval'],
    };
  }
  if ((streams === 'fixedPoint') !== (c.iterations !== undefined)) {
    yield { message: 'iterations belong to fixedPoint, and it needs them', path: ['iterations'] };
  }
  const special: [string, number][] = c.eosTokenIds.map((id) => ['eosTokenIds', id]);
  if (c.bosTokenId !== undefined) special.push(['bosTokenId', c.bosTokenId]);
  for (const [field, id] of special) {
    if (id >= c.vocabSize)
      yield { message: `token id ${id} is outside vocabSize ${c.vocabSize}`, path: [field] };
  }
}

/** Checks a config; throws CONFIG_INVALID naming every offending field. */
export function parseModelConfig(input: unknown, file?: string): ModelConfig {
  const result = modelConfigSchema.safeParse(input);
  if (result.success) return result.data;
  const problems = result.error.issues.map(
    (issue) => `${issue.path.join('.') || 'config'}: ${issue.message}`,
  );
  throw new CflowError('CONFIG_INVALID', `not a valid model configuration: ${problems.join('; ')}`, { file });
}
