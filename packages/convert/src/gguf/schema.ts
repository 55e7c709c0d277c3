/** GGUF, the file of llama.cpp, as tables: value types, tensor types, and what bounds a hostile file. Little endian. */
import type { Dtype } from '@cflow/format';

/** First bytes of a GGUF. */
export const GGUF_MAGIC = 'GGUF';
/** What is written; version 2 differs in nothing that is read here. */
export const GGUF_VERSION = 3;
/** Versions that are read. */
export const GGUF_READABLE: readonly number[] = [2, 3];
/** Of the data and of every tensor in it, unless general.alignment says otherwise. */
export const GGUF_ALIGNMENT = 32;

/** Types of metadata values: id, and the fewest bytes that one takes. */
export const VALUE_TYPES = {
  u8: { id: 0, bytes: 1 },
  i8: { id: 1, bytes: 1 },
  u16: { id: 2, bytes: 2 },
  i16: { id: 3, bytes: 2 },
  u32: { id: 4, bytes: 4 },
  i32: { id: 5, bytes: 4 },
  f32: { id: 6, bytes: 4 },
  bool: { id: 7, bytes: 1 },
  string: { id: 8, bytes: 8 },
  array: { id: 9, bytes: 12 },
  u64: { id: 10, bytes: 8 },
  i64: { id: 11, bytes: 8 },
  f64: { id: 12, bytes: 8 },
} as const;
/** Types of metadata values. */
export type ValueType = keyof typeof VALUE_TYPES;
/** Types of metadata values that are no arrays. */
export type ScalarType = Exclude<ValueType, 'array'>;
/** A metadata value that is no array. */
export type GgufScalar = number | boolean | string;
/** A metadata value. */
export type GgufValue = GgufScalar | readonly GgufScalar[];

/** One metadata value to write; `array` says of what. */
export type GgufEntry =
  | readonly [key: string, type: ScalarType, value: GgufScalar]
  | readonly [key: string, type: 'array', value: readonly GgufScalar[], item: ScalarType];

/** How a GGUF stores the weights of a tensor. */
export interface TensorType {
  readonly id: number;
  /** Weights per block, and bytes of one. */
  readonly group: number;
  readonly bytes: number;
  /** The tile dtype that holds the same weights, bit by bit; absent: none does. */
  readonly dtype?: Dtype;
}

/** Types of tensors that are read. What also has a `dtype` is written. */
export const TENSOR_TYPES = {
  F32: { id: 0, group: 1, bytes: 4, dtype: 'f32' },
  F16: { id: 1, group: 1, bytes: 2, dtype: 'f16' },
  Q4_0: { id: 2, group: 32, bytes: 18, dtype: 'q4_0' },
  Q8_0: { id: 8, group: 32, bytes: 34, dtype: 'q8_0' },
  BF16: { id: 30, group: 1, bytes: 2 },
} as const satisfies Record<string, TensorType>;
/** One of `TENSOR_TYPES`. */
export type TensorTypeName = keyof typeof TENSOR_TYPES;
/** The names of `TENSOR_TYPES`. */
export const TENSOR_TYPE_NAMES = Object.keys(TENSOR_TYPES) as TensorTypeName[];

/** Types that are refused by name. */
export const REFUSED_TENSOR_TYPES: Readonly<Record<number, string>> = {
  3: 'Q4_1',
  6: 'Q5_0',
  7: 'Q5_1',
  9: 'Q8_1',
  10: 'Q2_K',
  11: 'Q3_K',
  12: 'Q4_K',
  13: 'Q5_K',
  14: 'Q6_K',
  15: 'Q8_K',
  16: 'IQ2_XXS',
  17: 'IQ2_XS',
  18: 'IQ3_XXS',
  19: 'IQ1_S',
  20: 'IQ4_NL',
  21: 'IQ3_S',
  22: 'IQ2_S',
  23: 'IQ4_XS',
  24: 'I8',
  25: 'I16',
  26: 'I32',
  27: 'I64',
  28: 'F64',
  29: 'IQ1_M',
  34: 'TQ1_0',
  35: 'TQ2_0',
  39: 'MXFP4',
};

/** The GGUF type of a tile dtype, and general.file_type of a file that mostly has it. */
export const TYPE_OF_DTYPE: Readonly<Record<Dtype, { name: TensorTypeName; fileType: number }>> = {
  f32: { name: 'F32', fileType: 0 },
  f16: { name: 'F16', fileType: 1 },
  q4_0: { name: 'Q4_0', fileType: 2 },
  q8_0: { name: 'Q8_0', fileType: 7 },
};

/** Everything before the data; the largest tokenizers have some 20 MB here. */
export const MAX_HEAD_BYTES = 256 * 1024 * 1024;
/** Known files have some 50 keys and, with experts merged, some 1,500 tensors. */
export const MAX_KEYS = 65_536;
/** Tensors that a file may declare. */
export const MAX_TENSORS = 262_144;
/** Bytes of a key or of a tensor's name. */
export const MAX_NAME_BYTES = 65_535;
/** Merges of the largest tokenizers are some 500,000. */
export const MAX_ARRAY_ITEMS = 4_194_304;
/** Dimensions of a tensor. */
export const MAX_DIMS = 4;
/** Largest general.alignment. */
export const MAX_ALIGNMENT = 65_536;
