/**
 * Which tensors a model has and how they are grouped into streams: the unit that is placed, checksummed and fetched.
 * Names, shapes and order stand here once; layout, plan, converter, reader and export all read them.
 */

import { MATRIX_IDS, type MatrixName, NO_EXPERT } from '../file/schema.js';
import { type Dtype, matrixBytes, TILE_ROWS } from '../tiles/dtype.js';
import { type LayerConfig, type ModelConfig, normPlaces } from './config.js';

/** One tensor of a model, in PyTorch order: [out, in] for matrices, [n] for vectors. */
export interface TensorSpec {
  /** Canonical name, also the naming of the report's checkpoints, e.g. `layers.3.attn.q_proj.weight`. */
  readonly name: string;
  readonly shape: readonly number[];
  /** The matrix id of a tiled matrix; absent for what is stored as plain f32. */
  readonly matrix?: MatrixName;
  /** Of its tiles, where it is not that of the file. */
  readonly dtype?: Dtype;
  readonly layer: number;
  readonly expert: number;
}

/** Part of a stream: one plain f32 tensor, or matrices whose tiles are interleaved by output stripe. */
export type StreamPart =
  | { readonly kind: 'plain'; readonly tensor: TensorSpec }
  | { readonly kind: 'tiles'; readonly matrices: readonly TensorSpec[] };

/** What a stream can hold. */
export const STREAM_KINDS = [
  'attention',
  'dense',
  'router',
  'expert',
  'finalNorm',
  'embedding',
  'lmHead',
] as const;
/** One of `STREAM_KINDS`. */
export type StreamKind = (typeof STREAM_KINDS)[number];

/** The unit that is placed, checksummed and fetched: contiguous, in the order in which it is read. */
export interface Stream {
  /** `layers.3.attention`, `layers.3.experts.7`, `embedding`, … */
  readonly name: string;
  readonly kind: StreamKind;
  readonly layer: number;
  readonly expert: number;
  readonly parts: readonly StreamPart[];
}

/** Names of streams by kind. */
export const streamName = {
  attention: (layer: number) => `layers.${layer}.attention`,
  dense: (layer: number) => `layers.${layer}.dense`,
  router: (layer: number) => `layers.${layer}.router`,
  expert: (layer: number, expert: number) => `layers.${layer}.experts.${expert}`,
  finalNorm: () => 'final_norm',
  embedding: () => 'embedding',
  lmHead: () => 'lm_head',
} as const;

/** All streams of a model, layer by layer, then final norm, embedding and LM head. */
export function modelStreams(config: ModelConfig): Stream[] {
  const layers = config.layers.flatMap((layer, index) => layerStreams(config, layer, index));
  return [...layers, ...vocabStreams(config)];
}

/** The streams of one layer: attention, dense, router, experts, as far as it has them. */
export function layerStreams(config: ModelConfig, layer: LayerConfig, index: number): Stream[] {
  const streams = [attentionStream(config, layer, index)];
  if (layer.ffn) streams.push(denseStream(config, layer, index));
  if (layer.experts) {
    streams.push(routerStream(config, layer, index));
    for (let e = 0; e < layer.experts.count; e++) streams.push(expertStream(config, layer, index, e));
  }
  return streams;
}

function attentionStream(config: ModelConfig, layerConfig: LayerConfig, layer: number): Stream {
  const { attention: a } = layerConfig;
  const { attnIn, attnOut } = normPlaces(layerConfig);
  const shared = a.kvFrom !== undefined;
  const d = config.hiddenDim;
  const qDim = a.heads * a.headDim;
  const kvDim = a.kvHeads * a.headDim;
  const at = tensorsOf(layer, `layers.${layer}.attn`);
  const norms =
    a.qkNorm === 'none'
      ? []
      : [
          at.plain('q_norm.weight', a.qkNorm === 'head' ? a.headDim : qDim),
          ...(shared ? [] : [at.plain('k_norm.weight', a.qkNorm === 'head' ? a.headDim : kvDim)]),
        ];
  const inputs = [
    { matrix: 'q' as const, name: 'q_proj', rows: qDim },
    ...(shared ? [] : [{ matrix: 'k' as const, name: 'k_proj', rows: kvDim }]),
    ...(a.valueFromKey || shared ? [] : [{ matrix: 'v' as const, name: 'v_proj', rows: kvDim }]),
  ];
  const biases = a.biasQkv ? inputs.map(({ name, rows }) => at.plain(`${name}.bias`, rows)) : [];
  const whole = tensorsOf(layer, `layers.${layer}`);
  return {
    name: streamName.attention(layer),
    kind: 'attention',
    layer,
    expert: NO_EXPERT,
    parts: [
      ...(attnIn ? [whole.plain('attn_norm.weight', d)] : []),
      ...(attnOut ? [whole.plain('attn_post_norm.weight', d)] : []),
      ...norms,
      ...biases,
      ...(a.biasOut ? [at.plain('o_proj.bias', d)] : []),
      tiles(...inputs.map(({ matrix, name, rows }) => at.matrix(matrix, name, rows, d))),
      tiles(at.matrix('o', 'o_proj', d, qDim)),
      ...(layer === 0 ? layerInputProjection(config) : []),
    ],
  };
}

/** What makes the inputs of all layers out of the embedding: in the stream that every token needs first. */
function layerInputProjection({ perLayerInput, layers, hiddenDim }: ModelConfig): StreamPart[] {
  if (!perLayerInput) return [];
  const at = tensorsOf(0, 'layer_input');
  return [
    at.plain('norm.weight', perLayerInput.dim),
    tiles(at.matrix('layer_input_projection', 'projection', layers.length * perLayerInput.dim, hiddenDim)),
  ];
}

/** How a layer uses its input: behind the FFN, whose stream holds it. */
function layerInput({ perLayerInput, hiddenDim }: ModelConfig, layer: number): StreamPart[] {
  if (!perLayerInput) return [];
  const at = tensorsOf(layer, `layers.${layer}.layer_input`);
  return [
    at.plain('norm.weight', hiddenDim),
    tiles(at.matrix('layer_input_gate', 'gate', perLayerInput.dim, hiddenDim)),
    tiles(at.matrix('layer_input_out', 'out', hiddenDim, perLayerInput.dim)),
  ];
}

/** The norms around FFN and experts travel with the dense stream, or with the router where there is none. */
function ffnNorms({ hiddenDim }: ModelConfig, layerConfig: LayerConfig, layer: number): StreamPart[] {
  const { ffnIn, ffnOut } = normPlaces(layerConfig);
  const at = tensorsOf(layer, `layers.${layer}`);
  return [
    ...(ffnIn ? [at.plain('ffn_norm.weight', hiddenDim)] : []),
    ...(ffnOut ? [at.plain('ffn_post_norm.weight', hiddenDim)] : []),
  ];
}

/** Last of its stream, so that one number does not shift what follows. */
function outputScale({ outputScale: scaled }: LayerConfig, layer: number): StreamPart[] {
  return scaled ? [tensorsOf(layer, `layers.${layer}`).plain('output_scale', 1)] : [];
}

function denseStream(config: ModelConfig, layerConfig: LayerConfig, layer: number): Stream {
  const { ffn, experts } = layerConfig;
  const d = config.hiddenDim;
  const f = ffn!.dim;
  const at = tensorsOf(layer, `layers.${layer}.ffn`);
  const biases = ffn!.bias
    ? [at.plain('gate_proj.bias', f), at.plain('up_proj.bias', f), at.plain('down_proj.bias', d)]
    : [];
  return {
    name: streamName.dense(layer),
    kind: 'dense',
    layer,
    expert: NO_EXPERT,
    parts: [
      ...ffnNorms(config, layerConfig, layer),
      ...(experts?.ownNorms ? [tensorsOf(layer, `layers.${layer}`).plain('ffn_out_norm.weight', d)] : []),
      ...biases,
      tiles(at.matrix('gate', 'gate_proj', f, d), at.matrix('up', 'up_proj', f, d)),
      tiles(at.matrix('down', 'down_proj', d, f)),
      ...layerInput(config, layer),
      ...outputScale(layerConfig, layer),
    ],
  };
}

function routerStream(config: ModelConfig, layerConfig: LayerConfig, layer: number): Stream {
  const { ffn, experts } = layerConfig;
  const d = config.hiddenDim;
  const at = tensorsOf(layer, `layers.${layer}`);
  const weight: StreamPart = {
    kind: 'plain',
    tensor: {
      name: `layers.${layer}.router.weight`,
      shape: [experts!.count, config.hiddenDim],
      layer,
      expert: NO_EXPERT,
    },
  };
  return {
    name: streamName.router(layer),
    kind: 'router',
    layer,
    expert: NO_EXPERT,
    parts: [
      ...(ffn ? [] : ffnNorms(config, layerConfig, layer)),
      ...(experts!.ownNorms
        ? [at.plain('experts_norm.weight', d), at.plain('experts_out_norm.weight', d)]
        : []),
      ...(experts!.routerNorm ? [at.plain('router_norm.weight', d)] : []),
      ...(experts!.expertScale ? [at.plain('router.expert_scale', experts!.count)] : []),
      weight,
      ...(ffn ? [] : outputScale(layerConfig, layer)),
    ],
  };
}

function expertStream(config: ModelConfig, { experts }: LayerConfig, layer: number, expert: number): Stream {
  const d = config.hiddenDim;
  const f = experts!.dim;
  const at = tensorsOf(layer, `layers.${layer}.experts.${expert}`, expert);
  return {
    name: streamName.expert(layer, expert),
    kind: 'expert',
    layer,
    expert,
    parts: [
      tiles(at.matrix('expert_gate', 'gate_proj', f, d), at.matrix('expert_up', 'up_proj', f, d)),
      tiles(at.matrix('expert_down', 'down_proj', d, f)),
    ],
  };
}

/** Final norm, embedding, and the LM head unless it is tied. */
export function vocabStreams(config: ModelConfig): Stream[] {
  const { hiddenDim: d, vocabSize, perLayerInput, layers } = config;
  const at = tensorsOf(0, '');
  const one = (kind: StreamKind, name: string, ...parts: StreamPart[]): Stream => ({
    name,
    kind,
    layer: 0,
    expert: NO_EXPERT,
    parts,
  });
  const width = layers.length * (perLayerInput?.dim ?? 0);
  const layerInputs = tensorsOf(0, 'layer_input').matrix(
    'layer_input_embedding',
    'embedding',
    vocabSize,
    width,
  );
  const streams = [
    one('finalNorm', streamName.finalNorm(), at.plain('norm.weight', d)),
    one(
      'embedding',
      streamName.embedding(),
      tiles(at.matrix('embedding', 'embed_tokens', vocabSize, d)),
      ...(perLayerInput ? [tiles(layerInputs)] : []),
    ),
  ];
  if (!config.tiedEmbeddings) {
    streams.push(one('lmHead', streamName.lmHead(), tiles(at.matrix('lm_head', 'lm_head', vocabSize, d))));
  }
  return streams;
}

function tensorsOf(layer: number, prefix: string, expert: number = NO_EXPERT) {
  const full = (name: string) => (prefix ? `${prefix}.${name}` : name);
  return {
    plain: (name: string, length: number): StreamPart => ({
      kind: 'plain',
      tensor: { name: full(name), shape: [length], layer, expert },
    }),
    matrix: (matrix: MatrixName, name: string, rows: number, cols: number): TensorSpec => ({
      name: full(`${name}.weight`),
      shape: [rows, cols],
      matrix,
      layer,
      expert,
    }),
  };
}

function tiles(...matrices: TensorSpec[]): StreamPart {
  return { kind: 'tiles', matrices };
}

/** The tensors of a part, in order. */
export function partTensors(part: StreamPart): readonly TensorSpec[] {
  return part.kind === 'plain' ? [part.tensor] : part.matrices;
}

/** The tensors of a stream, in order. */
export function streamTensors({ parts }: Stream): TensorSpec[] {
  return parts.flatMap((part) => [...partTensors(part)]);
}

/** The stream with the dtypes that `dtypeOf` gives its matrices; those of `dtype`, the file's own, carry none. */
export function withDtypes(stream: Stream, dtype: Dtype, dtypeOf: (tensor: TensorSpec) => Dtype): Stream {
  if (streamTensors(stream).every((tensor) => !tensor.matrix || dtypeOf(tensor) === dtype)) return stream;
  const parts = stream.parts.map((part): StreamPart => {
    if (part.kind === 'plain') return part;
    return {
      kind: 'tiles',
      matrices: part.matrices.map((tensor) => {
        const own = dtypeOf(tensor);
        return own === dtype ? tensor : { ...tensor, dtype: own };
      }),
    };
  });
  return { ...stream, parts };
}

/** Every tensor of a model, in stream order. */
export function modelTensors(config: ModelConfig): TensorSpec[] {
  return modelStreams(config).flatMap(streamTensors);
}

/** Number of elements of a shape. */
export function elements(shape: readonly number[]): number {
  return shape.reduce((product, n) => product * n, 1);
}

/** Parameters of the model, each stored weight once. */
export function parameterCount(config: ModelConfig): number {
  return modelTensors(config).reduce((sum, tensor) => sum + elements(tensor.shape), 0);
}

/** Bytes of a part as stored, tile headers and scales included. */
export function partBytes(part: StreamPart, dtype: Dtype): number {
  if (part.kind === 'plain') return 4 * elements(part.tensor.shape);
  return part.matrices.reduce(
    (sum, { shape, dtype: own }) => sum + matrixBytes(own ?? dtype, shape[0]!, shape[1]!),
    0,
  );
}

/** Bytes of a stream as stored, padding behind it not included. */
export function streamBytes(stream: Stream, dtype: Dtype): number {
  return stream.parts.reduce((sum, part) => sum + partBytes(part, dtype), 0);
}

/** One output stripe of one matrix: the unit of conversion and of threading. */
export interface Stripe {
  readonly tensor: TensorSpec;
  readonly matrixId: number;
  readonly rowOffset: number;
  readonly rows: number;
}

/** Stripes of a tiled part in file order: stripe i of every matrix before stripe i + 1 of any (report §3.5.2). */
export function* partStripes(part: StreamPart & { kind: 'tiles' }): Generator<Stripe> {
  const most = Math.max(...part.matrices.map((m) => m.shape[0]!));
  for (let rowOffset = 0; rowOffset < most; rowOffset += TILE_ROWS) {
    for (const tensor of part.matrices) {
      const rows = Math.min(TILE_ROWS, tensor.shape[0]! - rowOffset);
      if (rows > 0) yield { tensor, matrixId: MATRIX_IDS[tensor.matrix!], rowOffset, rows };
    }
  }
}
