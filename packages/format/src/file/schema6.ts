/** The head of version 6, struct by struct. Entries may grow: tables say how many bytes theirs have. */
import { struct, TILE_HEADER_6 } from './schema.js';

/** First struct of a file of version 6; sections follow at `prologue_bytes`. */
export const PROLOGUE = struct('Prologue', 48, [
  ['magic', 'magic', '`CFLOW\\0\\0\\0` or `VFLOW\\0\\0\\0`'],
  ['version', 'u32', '6'],
  ['head_checksum', 'u32', 'CRC-32 of prologue (this field zero) and section table'],
  ['head_bytes', 'u64', 'from byte 0 to the end of the last section in front of the streams'],
  ['file_size', 'u64', 'bytes of the whole file'],
  ['required_features', 'u32', 'bits that a reader must know to read the file'],
  ['compatible_features', 'u32', 'bits that a reader may ignore'],
  ['prologue_bytes', 'u16', 'where the section table begins: 48'],
  ['section_count', 'u16', 'entries of the section table'],
  ['section_entry_bytes', 'u16', 'bytes of one of them: 40'],
  ['reserved', 'u16', '0'],
]);

/** One per section. */
export const SECTION_ENTRY = struct('SectionEntry', 40, [
  ['kind', 'u32', 'what the section is, see below'],
  ['entry_bytes', 'u32', 'bytes of an entry of a table; 0 where the section is none'],
  ['offset', 'u64', 'first byte, a multiple of 8'],
  ['length', 'u64', 'bytes in use'],
  ['capacity', 'u64', 'bytes set aside for it, at least `length`'],
  ['checksum', 'u32', 'CRC-32 of the bytes in use'],
  ['reserved', 'u32', '0'],
]);

/** One per stream, in canonical order: layer by layer, then final norm, embedding, LM head. */
export const STREAM_ENTRY = struct('StreamEntry', 48, [
  ['name_offset', 'u32', 'first byte of its name in the names section'],
  ['name_length', 'u16', 'bytes of its name'],
  ['kind', 'u8', 'what it holds, see below'],
  ['reserved', 'u8', '0'],
  ['layer', 'u32', 'layer; 0 for final norm, embedding and LM head'],
  ['expert', 'u32', 'expert, 0xFFFF = none'],
  ['offset', 'u64', 'first byte in the file, a multiple of 4,096'],
  ['length', 'u64', ''],
  ['first_tensor', 'u32', 'index of its first tensor in the tensor table'],
  ['tensor_count', 'u32', 'how many it has; they follow one another'],
  ['checksum', 'u32', 'CRC-32 of its bytes'],
  ['reserved_2', 'u32', '0'],
]);

/** One per tensor, stream by stream. */
export const TENSOR_ENTRY = struct('TensorEntry', 48, [
  ['name_offset', 'u32', 'first byte of its name in the names section'],
  ['name_length', 'u16', 'bytes of its name'],
  ['dtype', 'u8', 'id of its dtype'],
  ['matrix_id', 'u8', 'of its tiles; 255 = a plain array without tiles'],
  ['stream', 'u32', 'index of its stream in the stream table'],
  ['rank', 'u32', 'dimensions: 1 or 2'],
  ['dim_0', 'u32', 'first dimension: rows of a matrix'],
  ['dim_1', 'u32', 'second dimension: columns of a matrix; 1 where there is none'],
  ['dim_2', 'u32', '1'],
  ['dim_3', 'u32', '1'],
  ['offset', 'u64', 'of its first byte or first tile, from the first byte of its stream'],
  ['length', 'u64', ''],
]);

/** matrix_id of a tensor that has no tiles. */
export const PLAIN_TENSOR = 255;

/** Structs of version 6 alone, in the order of the document. */
export const STRUCTS_6 = [PROLOGUE, SECTION_ENTRY, STREAM_ENTRY, TENSOR_ENTRY, TILE_HEADER_6] as const;

/** What a section can be; readers pass over kinds that they do not know. */
export const SECTION_KINDS = {
  metadata: 1,
  names: 2,
  streams: 3,
  tensors: 4,
  tokenizer: 6,
  settings: 7,
  slack: 8,
} as const;
/** One of `SECTION_KINDS`. */
export type SectionKind = keyof typeof SECTION_KINDS;

/** Bits of required_features by name: without knowing one, a reader must refuse the file. */
export const REQUIRED_FEATURES: Readonly<Record<string, number>> = {};
