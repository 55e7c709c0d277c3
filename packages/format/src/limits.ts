/** Limits of version 5; each follows from the width of a field, or bounds what a hostile file can make a reader allocate. */

/** expert_id is a byte and 0xFF means "no expert". */
export const MAX_EXPERTS = 255;
/** layer_id, num_layers and the shared dimensions are u16. */
export const MAX_LAYERS = 65_535;
/** col_offset of a tile and the dimensions of the headers are u16. */
export const MAX_COLUMNS = 65_535;
/** num_kv_heads is a u8 in the .vflow header. */
export const MAX_KV_HEADS = 255;
/** num_q_heads is a u16; no known model comes near a quarter of this. */
export const MAX_Q_HEADS = 4_096;
/** row_offset is a u32; vocabularies of known models stay below 300,000. */
export const MAX_VOCAB = 16_777_216;
/** Metadata is read whole: tokenizers are at most some 35 MB, checksums of the largest models some 5 MB. */
export const MAX_METADATA_BYTES = 256 * 1024 * 1024;
/** Delays are bytes in the header; more than this many layers of delay is not a model but a mistake. */
export const MAX_DELAY = 64;
/** Nesting of the metadata document, so that a hostile one cannot exhaust the stack. */
export const MAX_JSON_DEPTH = 64;
/** Offsets are u64 on disk but numbers here: exact up to 2^53 - 1. */
export const MAX_FILE_BYTES = Number.MAX_SAFE_INTEGER;
/** Streams of one file: known models have some 12,000 (94 layers of 128 experts). Bounds what a config can make a reader build. */
export const MAX_STREAMS = 262_144;
