/** Decoders of Hugging Face as rows: what a class has besides a llama, and its defaults. */
import { CflowError, MAX_STREAMS, type ModelConfigInput, type NormStyle } from '@cflow/format';
import type { JsonObject } from '../json.js';
import { ConfigLedger } from './config-ledger.js';
import { type ConfigContext, type Family, lookUp, type NameTable, readFields } from './family.js';
import {
  ACTIVATION_NAMES,
  ALIASES,
  checkLayers,
  type DecoderJson,
  decoderSchema,
  type LayerHeads,
  normalised,
  PREFERRED,
  tokenSchema,
} from './fields.js';
import { type LayerType, type RopeDefaults, ropeFrom, scaledContext } from './rope.js';

type LayerInput = ModelConfigInput['layers'][number];
type AttentionInput = LayerInput['attention'];
type ExpertsInput = NonNullable<LayerInput['experts']>;

const PREFIXES = ['model.', 'model.language_model.', 'language_model.model.'];

/** A family: what it has besides a llama. An absent property means that it is as in a llama. */
export interface DecoderRow {
  /** `model_type` of its config.json; its name in errors, and `family` in files. */
  readonly modelType: string;
  /**
   * What the class says where config.json is silent, by the field's name there: sizes, `hidden_act`, `rms_norm_eps`, token
   * ids, `tie_word_embeddings: true` where the LM head is the embedding (llama: false), `attention_bias` and so on.
   */
  readonly defaults: JsonObject;
  /** Context length, and per kind of layer the rotation's parameters by their names in config.json, where it is silent. */
  readonly rope: RopeDefaults;
  /** Canonical name (`modelTensors` lists them) → stored name, which begins with `model.` or is `lm_head.weight`. */
  readonly names: NameTable;
  /** Rows of `names` under other names, or fused in another way, for checkpoints that have those; absent = none. */
  readonly otherNames?: readonly NameTable[];
  /** What stands for `model.` in files, the usual first; absent = `model.`, and two of wrappers (`PREFIXES`). */
  readonly prefixes?: readonly string[];
  /** Added to every weight of a norm: 1 where they are stored around 0; absent = 0. */
  readonly normOffset?: number;
  /** Which places of a layer are normed, of `NORM_STYLES` in @cflow/format; absent = `pre`. */
  readonly norms?: NormStyle;
  /** RMSNorm of q and k before they rotate, per head or over the whole projection; absent = none. */
  readonly qkNorm?: 'head' | 'whole';
  /** `clip_qkv` acts: q, k and v are clamped behind their norms; in other classes the field has no effect. */
  readonly clipsQkv?: true;
  /** RMSNorm of each value head, which has no weight. */
  readonly vNorm?: true;
  /** Biases of q, k and v whatever `attention_bias` says, and none of o. */
  readonly biasQkv?: true;
  /** Embeddings are multiplied by √hidden_size. */
  readonly scaleEmbeddings?: true;
  /** The residual after each layer is multiplied by a stored number, `layers.{layer}.output_scale`. */
  readonly outputScale?: true;
  /** `attn_logit_softcapping` acts; in other classes the field may stand without effect. */
  readonly attentionSoftcap?: true;
  /** Multiplies q·k; absent = 1/√headDim. */
  readonly scale?: (fields: DecoderJson) => number;
  /** Whether a layer sees only a window, of `sliding_window` positions; absent = none does. */
  readonly sliding?: (fields: DecoderJson, layer: number) => boolean;
  /** Whether a layer rotates; absent = all do. */
  readonly rotates?: (fields: DecoderJson, layer: number) => boolean;
  /** Head dimension and key/value heads of a layer where those are not the model's; absent = they are. */
  readonly headsOf?: (fields: DecoderJson, layer: number) => LayerHeads | undefined;
  /** Absent = no layer has any. */
  readonly experts?: ExpertsRow;
  /** The last `num_kv_shared_layers` use the KV cache of the last layer of their kind before them. */
  readonly sharesKv?: true;
  /** Why a config cannot be read; undefined = it can. */
  readonly refuses?: (fields: DecoderJson) => string | undefined;
}

/** The experts of a family. */
export interface ExpertsRow {
  /** Width of an expert. */
  readonly dim: 'intermediate_size' | 'moe_intermediate_size';
  /** Whether the weights of the chosen are made to sum to 1. */
  readonly normalize: (fields: DecoderJson) => boolean;
  /** Which layers have experts; absent = all. */
  readonly has?: (fields: DecoderJson, layer: number) => boolean;
  /** The dense FFN stands beside the experts, not in their place. */
  readonly besideFfn?: true;
  /** What else of `experts` in `ModelConfig`: norms and scales of their own; absent = nothing. */
  readonly extras?: (fields: DecoderJson) => Partial<ExpertsInput>;
}

export function decoder(row: DecoderRow): Family {
  return {
    modelType: row.modelType,
    configFrom: (json, context) => configFrom(row, json, context),
    tensorNames: row.names,
    ...(row.otherNames && { otherNames: row.otherNames }),
    prefixes: row.prefixes ?? PREFIXES,
    ...(row.normOffset !== undefined && { normOffset: row.normOffset }),
    ignorable: [
      { reason: 'the table of rotation follows from config.json', patterns: ['*.rotary_emb.inv_freq'] },
    ],
  };
}

function configFrom(row: DecoderRow, json: JsonObject, context: ConfigContext): ModelConfigInput {
  const { file, name } = context;
  const ledger = new ConfigLedger(json);
  const parsed = readFields(decoderSchema, normalised(json, row.defaults, file), file);
  checkLayers(parsed, file);
  refuseTooMany(row, parsed, file);
  const fields = ledger.watched({ ...parsed, ...fromShapes(row, parsed, json, context, ledger) });
  if (fields.is_causal === false) {
    throw new CflowError('UNSUPPORTED', 'false: bidirectional attention, which cannot generate', {
      file,
      field: 'is_causal',
      value: false,
      limit: true,
      remedy: 'only causal decoders can be converted',
    });
  }
  const problem = row.refuses?.(fields);
  if (problem !== undefined) throw new CflowError('UNSUPPORTED', problem, { file });
  const layers = Array.from({ length: fields.num_hidden_layers }, (_, i) =>
    layerFrom(row, fields, i, file, ledger),
  );
  const contextLength = fields.max_position_embeddings ?? row.rope.contextLength;
  if (!fields.max_position_embeddings) ledger.defaulted('max_position_embeddings', contextLength);
  const config: ModelConfigInput = {
    name,
    family: row.modelType,
    hiddenDim: fields.hidden_size,
    vocabSize: fields.vocab_size!,
    contextLength: scaledContext(
      contextLength,
      layers.map(({ attention }) => attention.rope),
    ),
    normEps: fields.rms_norm_eps,
    tiedEmbeddings: fields.tie_word_embeddings,
    ...(row.scaleEmbeddings && { scaleEmbeddings: true }),
    ...(fields.hidden_size_per_layer_input && {
      perLayerInput: { dim: fields.hidden_size_per_layer_input },
    }),
    ...(fields.final_logit_softcapping ? { finalLogitSoftcap: fields.final_logit_softcapping } : {}),
    combineStyle: 'sequential',
    ...tokensFrom(row, json, context, fields.vocab_size!, ledger),
    layers,
  };
  for (const line of ledger.notes(row.modelType, row.defaults, ALIASES, PREFERRED)) context.note?.(line);
  return config;
}

/** Streams a layer has besides its experts. */
const STREAMS_PER_LAYER = 2;

/** Counted before anything is built: a hostile configuration costs nothing. @throws CflowError LIMIT_EXCEEDED */
function refuseTooMany(row: DecoderRow, fields: DecoderJson, file: string): void {
  const experts = row.experts ? (fields.num_experts ?? 0) : 0;
  let streams = fields.num_hidden_layers * STREAMS_PER_LAYER;
  for (let layer = 0; layer < fields.num_hidden_layers; layer++) {
    if (row.experts?.has?.(fields, layer) ?? true) streams += experts;
  }
  if (streams <= MAX_STREAMS) return;
  throw new CflowError(
    'LIMIT_EXCEEDED',
    `${fields.num_hidden_layers} layers with ${experts} experts are ${streams} streams, at most ${MAX_STREAMS}`,
    { file, field: 'num_hidden_layers', value: streams, limit: MAX_STREAMS },
  );
}

/** What config.json leaves open and the shapes of tensors say. */
function fromShapes(
  row: DecoderRow,
  fields: DecoderJson,
  json: JsonObject,
  { shapeOf, file }: ConfigContext,
  ledger: ConfigLedger,
): Partial<DecoderJson> {
  const shape = (canonical: string) => {
    const rule = row.names[canonical];
    if (!shapeOf || typeof rule !== 'string') return undefined;
    const rest = rule.replace('{layer}', '0').replace(/^model\./, '');
    return (row.prefixes ?? PREFIXES)
      .map((prefix) => shapeOf(prefix + rest))
      .find((found) => found !== undefined);
  };
  const derived: Partial<DecoderJson> = {};
  const rows = shape('embed_tokens.weight')?.[0];
  const stated = (field: string) => typeof json[field] === 'number' && json[field] > 0;
  if (!stated('vocab_size')) {
    if (rows) {
      derived.vocab_size = rows;
      ledger.say(`vocab_size ${rows}: the rows of the embedding; config.json does not state it`);
    } else if (!fields.vocab_size)
      throw new CflowError('CONFIG_INVALID', 'missing', { file, field: 'vocab_size' });
  }
  const width = shape('layers.{layer}.attn.q_proj.weight')?.[0];
  const headDim = width === undefined ? undefined : width / fields.num_attention_heads;
  if (!stated('head_dim') && headDim !== undefined && Number.isInteger(headDim)) {
    const otherwise = fields.head_dim ?? fields.hidden_size / fields.num_attention_heads;
    derived.head_dim = headDim;
    if (headDim !== otherwise) {
      ledger.say(`head_dim ${headDim}: the rows of q_proj by head; config.json does not state it`);
    }
  }
  return derived;
}

function layerFrom(
  row: DecoderRow,
  fields: DecoderJson,
  index: number,
  file: string,
  ledger: ConfigLedger,
): LayerInput {
  const has = row.experts && fields.num_experts !== 0 && (row.experts.has?.(fields, index) ?? true);
  const experts = has ? expertsFrom(row.experts!, fields, file) : undefined;
  const activation = lookUp(ACTIVATION_NAMES, fields.hidden_act, 'hidden_act', file);
  const wide = fields.use_double_wide_mlp && kvFrom(row, fields, index) !== undefined ? 2 : 1;
  return {
    attention: attentionFrom(row, fields, index, file, ledger),
    ...((!experts || row.experts?.besideFfn) && {
      ffn: { dim: needed(fields, 'intermediate_size', file) * wide, activation, bias: fields.mlp_bias },
    }),
    ...(experts && { experts }),
    ...(row.norms && { norms: row.norms }),
    ...(row.outputScale && { outputScale: true }),
  };
}

function needed(fields: DecoderJson, field: 'intermediate_size', file: string): number {
  const value = fields[field];
  if (value) return value;
  throw new CflowError('CONFIG_INVALID', 'missing', { file, field });
}

/** The layer whose KV cache a layer reads; undefined where it has its own. */
function kvFrom(row: DecoderRow, fields: DecoderJson, index: number): number | undefined {
  const first = fields.num_hidden_layers - (fields.num_kv_shared_layers ?? 0);
  if (!row.sharesKv || index < first) return undefined;
  const sliding = row.sliding?.(fields, index) ?? false;
  for (let layer = first - 1; layer >= 0; layer--) {
    if ((row.sliding?.(fields, layer) ?? false) === sliding) return layer;
  }
  return undefined;
}

function attentionFrom(
  row: DecoderRow,
  fields: DecoderJson,
  index: number,
  file: string,
  ledger: ConfigLedger,
): AttentionInput {
  const sliding = row.sliding?.(fields, index) ?? false;
  const heads = fields.num_attention_heads;
  const own = row.headsOf?.(fields, index);
  const headDim = own?.head_dim ?? fields.head_dim ?? dividedHeadDim(fields, file);
  const kvHeads = own?.num_key_value_heads ?? fields.num_key_value_heads ?? heads;
  const type: LayerType = sliding ? 'sliding_attention' : 'full_attention';
  const read = ropeFrom({ json: fields, headDim, defaults: row.rope, type, file, ledger });
  const rotates = row.rotates?.(fields, index) ?? true;
  const shared = kvFrom(row, fields, index);
  const scale = row.scale?.(fields) ?? 1 / Math.sqrt(headDim);
  return {
    heads,
    kvHeads,
    headDim,
    ...(sliding && { slidingWindow: windowOf(fields, index, file) }),
    ...(rotates && { rope: read.rope }),
    // Cosines and sines times a factor: queries and keys have it once each.
    scale: rotates ? scale * read.attentionFactor ** 2 : scale,
    ...(row.attentionSoftcap && fields.attn_logit_softcapping
      ? { softcap: fields.attn_logit_softcapping }
      : {}),
    ...(row.qkNorm && { qkNorm: row.qkNorm }),
    ...(row.clipsQkv && fields.clip_qkv ? { clipQkv: fields.clip_qkv } : {}),
    ...(row.vNorm && { vNorm: true }),
    ...(!sliding && fields.attention_k_eq_v ? { valueFromKey: true } : {}),
    ...(shared !== undefined && { kvFrom: shared }),
    biasQkv: row.biasQkv ?? fields.attention_bias,
    biasOut: row.biasQkv ? false : fields.attention_bias,
  };
}

function windowOf({ sliding_window: window }: DecoderJson, layer: number, file: string): number {
  if (window != null && window > 0) return window;
  throw new CflowError('CONFIG_INVALID', `${window ?? null}, but layer ${layer} slides`, {
    file,
    field: 'sliding_window',
    value: window ?? null,
    remedy: 'state a window of at least 1, or that all layers are full',
  });
}

function expertsFrom(row: ExpertsRow, fields: DecoderJson, file: string): ExpertsInput {
  const needed = { num_experts: fields.num_experts, num_experts_per_tok: fields.num_experts_per_tok };
  const dim = fields[row.dim];
  for (const [field, value] of Object.entries({ ...needed, [row.dim]: dim })) {
    if (!value) throw new CflowError('CONFIG_INVALID', 'missing', { file, field });
  }
  return {
    count: fields.num_experts!,
    topK: fields.num_experts_per_tok!,
    dim: dim!,
    activation: lookUp(ACTIVATION_NAMES, fields.hidden_act, 'hidden_act', file),
    normalizeTopK: row.normalize(fields),
    ...row.extras?.(fields),
  };
}

function dividedHeadDim({ hidden_size, num_attention_heads }: DecoderJson, file: string): number {
  if (hidden_size % num_attention_heads === 0) return hidden_size / num_attention_heads;
  throw new CflowError(
    'CONFIG_INVALID',
    `hidden_size ${hidden_size} is not a multiple of num_attention_heads ${num_attention_heads}`,
    { file, field: 'head_dim', remedy: 'state head_dim' },
  );
}

/**
 * A text ends at the ids of generation_config.json and of config.json, each of which may lack one. Absent in both means the
 * class default, null none. Ids outside the vocabulary are dropped, and that is said.
 */
function tokensFrom(
  { defaults, modelType }: DecoderRow,
  json: JsonObject,
  { file, generation }: ConfigContext,
  vocabSize: number,
  ledger: ConfigLedger,
) {
  const own = readFields(tokenSchema, { ...defaults, ...json }, file);
  const generated = readFields(tokenSchema, generation ?? {}, 'generation_config.json');
  const known = (field: 'bos_token_id' | 'eos_token_id', from: string, ids: readonly number[]) =>
    ids.filter((id) => {
      if (id >= 0 && id < vocabSize) return true;
      ledger.say(`${field} ${id} of ${from} is outside the vocabulary of ${vocabSize}: dropped`);
      return false;
    });
  const place = (field: string) => (field in json ? 'config.json' : `the defaults of ${modelType}`);
  const list = (id: number | null | undefined) => (id == null ? [] : [id]);
  const [bos] = [
    ...known('bos_token_id', 'generation_config.json', list(generated.bos_token_id)),
    ...(generated.bos_token_id == null
      ? known('bos_token_id', place('bos_token_id'), list(own.bos_token_id))
      : []),
  ];
  const stated = 'eos_token_id' in json || generated.eos_token_id == null ? own.eos_token_id : undefined;
  const eos = [
    ...known('eos_token_id', 'generation_config.json', generated.eos_token_id ?? []),
    ...known('eos_token_id', place('eos_token_id'), stated ?? []),
  ];
  return { ...(bos !== undefined && { bosTokenId: bos }), eosTokenIds: [...new Set(eos)] };
}
