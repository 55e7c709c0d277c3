/** Limits of the format; each follows from the width of a field, or bounds what a hostile file can make a reader allocate. */

/** expert_id of version 6 is a u16 and 0xFFFF means "no expert"; version 5 holds 255. */
export const MAX_EXPERTS = 65_534;
/** layer_id of a tile is a u16. */
export const MAX_LAYERS = 65_535;
/** Bounds what a config can ask for; known models have at most 73,728 (ffn_dim). Version 5 holds 65,535. */
export const MAX_COLUMNS = 1_048_576;
/** As MAX_Q_HEADS; version 5 holds 255. */
export const MAX_KV_HEADS = 4_096;
/** No known model comes near a quarter of this. */
export const MAX_Q_HEADS = 4_096;
/** row_offset is a u32; vocabularies of known models stay below 300,000. */
export const MAX_VOCAB = 16_777_216;
/** Metadata is read whole: tokenizers are at most some 35 MB, checksums of the largest models some 5 MB. */
export const MAX_METADATA_BYTES = 256 * 1024 * 1024;
/** The head of version 6 is read whole: the index of the largest known models (70,000 tensors) has some 8 MB. */
export const MAX_HEAD_BYTES = 256 * 1024 * 1024;
/** Sections of a file of version 6; this version knows eight kinds. */
export const MAX_SECTIONS = 64;
/** Delays are bytes in the header; more than this many layers of delay is not a model but a mistake. */
export const MAX_DELAY = 64;
/** Nesting of the metadata document, so that a hostile one cannot exhaust the stack. */
export const MAX_JSON_DEPTH = 64;
/** Offsets are u64 on disk but numbers here: exact up to 2^53 - 1. */
export const MAX_FILE_BYTES = Number.MAX_SAFE_INTEGER;
/** Streams of one file: known models have some 24,000 (61 layers of 384 experts). Bounds what a config can make a reader build. */
export const MAX_STREAMS = 262_144;

/** What the fields of version 5 hold: experts and key/value heads in a byte, columns in two. */
export const VERSION_5_LIMITS = { experts: 255, kvHeads: 255, columns: 65_535 } as const;
