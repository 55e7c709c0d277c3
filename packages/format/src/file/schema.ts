/**
 * The binary layouts of version 5, and the tile headers of both versions, once. Readers, writers, docs/format.md and (later) the C++ header all come from
 * these tables. All integers are little endian.
 */
export type FieldType = 'magic' | 'u8' | 'u16' | 'u32' | 'u64' | 'f32';
/** One field of a struct; `offset` in bytes from its start. */
export interface Field {
  readonly name: string;
  readonly type: FieldType;
  readonly offset: number;
  readonly meaning: string;
}
/** A struct of the format: its fields cover its bytes in order. */
export interface Struct {
  readonly name: string;
  readonly bytes: number;
  readonly fields: readonly Field[];
}

/** Bytes of a field. */
export const FIELD_BYTES: Record<FieldType, number> = { magic: 8, u8: 1, u16: 2, u32: 4, u64: 8, f32: 4 };
/** Version of both containers whose head is the structs below; version 6 has those of `schema6.ts`. */
export const VERSION = 5;
/** The versions of the format that are read and written. */
export const FORMAT_VERSIONS = [5, 6] as const;
/** One of `FORMAT_VERSIONS`. */
export type FormatVersion = (typeof FORMAT_VERSIONS)[number];
/** First bytes of a .cflow file. */
export const CFLOW_MAGIC = 'CFLOW\0\0\0';
/** First bytes of a .vflow file. */
export const VFLOW_MAGIC = 'VFLOW\0\0\0';

/** A struct whose fields follow one another without gaps. @throws Error if they do not cover `bytes` */
export function struct(
  name: string,
  bytes: number,
  rows: readonly (readonly [string, FieldType, string])[],
): Struct {
  let offset = 0;
  const fields = rows.map(([fieldName, type, meaning]) => {
    const field = { name: fieldName, type, offset, meaning };
    offset += FIELD_BYTES[type];
    return field;
  });
  if (offset !== bytes) throw new Error(`${name}: fields cover ${offset} bytes, not ${bytes}`);
  return { name, bytes, fields };
}

/** Of layers that differ, the headers carry layer 0 (`*`) and the first full-attention layer (`global_*`). */
export const GLOBAL_HEADER = struct('GlobalHeader', 88, [
  ['magic', 'magic', '`CFLOW\\0\\0\\0`'],
  ['version', 'u32', '5'],
  ['hidden_dim', 'u32', 'd, the width of the residual stream'],
  ['num_layers', 'u16', 'stored layers (blocks for FixedPoint)'],
  ['num_q_heads', 'u16', 'query heads of layer 0'],
  ['num_kv_heads', 'u8', 'key/value heads of layer 0'],
  ['global_kv_heads', 'u8', 'key/value heads of the first full-attention layer'],
  ['head_dim', 'u16', 'head dimension of layer 0'],
  ['global_head_dim', 'u16', 'head dimension of the first full-attention layer'],
  ['ffn_dim', 'u16', 'width of the dense FFN of the first layer that has one, 0 = none'],
  ['expert_ffn_dim', 'u16', 'width of an expert, 0 = none'],
  ['num_experts', 'u8', 'experts a layer, 0 = none'],
  ['top_k', 'u8', 'experts a token'],
  ['vocab_size', 'u32', 'rows of embedding and LM head'],
  ['sliding_window', 'u32', 'keys a sliding layer sees, 0 = no sliding layer'],
  ['sliding_pattern', 'u8', '0 = all layers alike, n = every n-th layer is full, 255 = see the metadata'],
  ['quant_type', 'u8', 'tile dtype: 0 q4_0, 1 q8_0, 2 f16, 3 f32'],
  ['tile_rows', 'u16', '128'],
  ['tile_cols', 'u16', '256'],
  ['quant_group', 'u16', 'weights per scale: 32, or 1 for f16 and f32'],
  ['layer_table_offset', 'u64', 'LayerTable'],
  ['metadata_offset', 'u64', 'metadata section'],
  ['metadata_length', 'u32', 'bytes of JSON'],
  ['head_checksum', 'u32', 'CRC-32 of header (this field zero), metadata and tables, in file order'],
  ['file_size', 'u64', 'bytes of the whole file'],
  ['dense_delay', 'u8', 'δd in layers'],
  ['expert_delay', 'u8', 'δe in layers'],
  ['combine_style', 'u8', '0 ParallelSqrt2 … 6 FixedPoint'],
  ['feature_flags', 'u8', 'bit 0 embeddings × √d, bit 1 V-norm, bit 2 tied embeddings'],
  ['final_logit_softcap', 'f32', '0 = off'],
]);

/** First struct of a .vflow file. */
export const VFLOW_HEADER = struct('VFlowHeader', 64, [
  ['magic', 'magic', '`VFLOW\\0\\0\\0`'],
  ['version', 'u8', '5'],
  ['sliding_pattern', 'u8', 'as in GlobalHeader'],
  ['hidden_dim', 'u16', 'as in GlobalHeader'],
  ['num_layers', 'u16', 'as in GlobalHeader'],
  ['num_q_heads', 'u16', 'as in GlobalHeader'],
  ['num_kv_heads', 'u8', 'as in GlobalHeader'],
  ['global_kv_heads', 'u8', 'as in GlobalHeader'],
  ['head_dim', 'u16', 'as in GlobalHeader'],
  ['global_head_dim', 'u16', 'as in GlobalHeader'],
  ['ffn_dim', 'u16', 'as in GlobalHeader'],
  ['expert_ffn_dim', 'u16', 'as in GlobalHeader'],
  ['num_experts', 'u8', 'as in GlobalHeader'],
  ['top_k', 'u8', 'as in GlobalHeader'],
  ['vocab_size', 'u32', 'as in GlobalHeader'],
  ['sliding_window', 'u32', 'as in GlobalHeader'],
  ['quant_type', 'u8', 'as in GlobalHeader; tiles are 128 × 256'],
  ['quant_group', 'u8', 'as in GlobalHeader'],
  ['group_count', 'u16', 'vertical groups'],
  ['group_table_offset', 'u32', 'GroupTable; the LayerTable follows it'],
  ['metadata_offset', 'u32', 'metadata section'],
  ['metadata_length', 'u32', 'bytes of JSON'],
  ['head_checksum', 'u32', 'as in GlobalHeader'],
  ['dense_delay', 'u8', 'as in GlobalHeader'],
  ['expert_delay', 'u8', 'as in GlobalHeader'],
  ['combine_style', 'u8', 'as in GlobalHeader'],
  ['feature_flags', 'u8', 'as in GlobalHeader'],
  ['final_logit_softcap', 'f32', 'as in GlobalHeader'],
]);

/** One per vertical group: consecutive layers of one attention geometry (report §3.4.1). */
export const GROUP_DESCRIPTOR = struct('GroupDescriptor', 56, [
  ['first_layer', 'u16', 'first layer of the group'],
  ['layer_count', 'u16', 'layers in the group'],
  ['reserved', 'u32', '0'],
  ['offset', 'u64', 'first byte of the group: its attention stage'],
  ['length', 'u64', 'bytes from there to the end of its last stream'],
  ['attention_offset', 'u64', 'attention stage'],
  ['attention_length', 'u64', ''],
  ['dense_offset', 'u64', 'dense stage: dense streams and routers'],
  ['dense_length', 'u64', ''],
]);

/** One per layer, in both containers. A stream that the layer lacks has offset 0 and length 0. */
export const LAYER_ENTRY = struct('LayerEntry', 64, [
  ['attention_offset', 'u64', 'attention stream: norms and biases, QKV tiles, O tiles'],
  ['attention_length', 'u64', ''],
  ['dense_offset', 'u64', 'dense stream: FFN norm and biases, gate and up tiles, down tiles'],
  ['dense_length', 'u64', ''],
  [
    'router_offset',
    'u64',
    'router stream: f32 [num_experts, hidden_dim], after the FFN norm where there is no dense stream',
  ],
  ['router_length', 'u64', ''],
  ['expert_table_offset', 'u64', 'array of ExpertEntry, one per expert'],
  ['expert_table_length', 'u64', ''],
]);

/** Follows the last LayerEntry. */
export const VOCAB_ENTRY = struct('VocabEntry', 48, [
  ['final_norm_offset', 'u64', 'f32 [hidden_dim]'],
  ['final_norm_length', 'u64', ''],
  ['embedding_offset', 'u64', 'tiles of [vocab_size, hidden_dim]'],
  ['embedding_length', 'u64', ''],
  ['lm_head_offset', 'u64', 'tiles of [vocab_size, hidden_dim]; 0 when tied'],
  ['lm_head_length', 'u64', ''],
]);

/** One per expert of a layer. */
export const EXPERT_ENTRY = struct('ExpertEntry', 16, [
  ['offset', 'u64', 'gate and up tiles interleaved by stripe, then down tiles'],
  ['length', 'u64', ''],
]);

/** Report §3.2.2; precedes every tile of version 5. */
export const TILE_HEADER = struct('TileHeader', 16, [
  ['layer_id', 'u16', 'layer; 0 for embedding and LM head'],
  ['matrix_id', 'u8', 'which matrix, see MATRIX_IDS'],
  ['expert_id', 'u8', 'expert, 0xFF = none'],
  ['row_offset', 'u32', 'first output index'],
  ['col_offset', 'u16', 'first input index'],
  ['tile_rows', 'u16', '1 … 128'],
  ['tile_cols', 'u16', '1 … 256'],
  ['quant_group', 'u16', 'weights per scale: 32, or 1 for f16 and f32'],
]);

/** Precedes every tile of version 6: as long as the one of version 5, so that engines skip both alike. */
export const TILE_HEADER_6 = struct('TileHeader6', 16, [
  ['layer_id', 'u16', 'layer; 0 for embedding and LM head'],
  ['expert_id', 'u16', 'expert, 0xFFFF = none'],
  ['row_offset', 'u32', 'first output index'],
  ['col_offset', 'u32', 'first input index'],
  ['matrix_id', 'u8', 'which matrix, see MATRIX_IDS'],
  ['dtype', 'u8', 'id of the dtype of the tile'],
  ['tile_rows', 'u8', '1 … 128'],
  ['last_col', 'u8', 'columns less one: 0 … 255'],
]);

/** Every struct of the format, in the order of the document. */
export const STRUCTS = [
  GLOBAL_HEADER,
  VFLOW_HEADER,
  GROUP_DESCRIPTOR,
  LAYER_ENTRY,
  VOCAB_ENTRY,
  EXPERT_ENTRY,
  TILE_HEADER,
] as const;

/** Which matrix a tile belongs to: the ids of its header. */
export const MATRIX_IDS = {
  q: 0,
  k: 1,
  v: 2,
  o: 3,
  gate: 4,
  up: 5,
  down: 6,
  router: 7,
  expert_gate: 8,
  expert_up: 9,
  expert_down: 10,
  embedding: 11,
  lm_head: 12,
  layer_input_gate: 13,
  layer_input_out: 14,
  layer_input_projection: 15,
  layer_input_embedding: 16,
} as const;
/** A matrix by its name in `MATRIX_IDS`. */
export type MatrixName = keyof typeof MATRIX_IDS;
/** The expert of what belongs to none; expert_id of its tiles in version 6. */
export const NO_EXPERT = 0xffff;
/** Bits of feature_flags. */
export const FEATURE_FLAGS = { scaleEmbeddings: 1, vNorm: 2, tiedEmbeddings: 4 } as const;
