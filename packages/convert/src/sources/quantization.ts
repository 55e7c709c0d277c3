/** Checkpoints that are quantized already: which can be read, and what to use instead of the others. */
import { CflowError } from '@cflow/format';
import { z } from 'zod';
import { isJsonObject, type JsonObject, type JsonValue } from '../json.js';

export interface Quantization {
  /** As config.json calls it. */
  readonly method: string;
  /** Where it says so. */
  readonly field: 'quantization_config' | 'quantization';
  /** Rows and columns that share one scale; null: one scale a tensor. */
  readonly block: readonly [number, number] | null;
}

const BLOCK = 128;
const size = z.int().min(1);
const schema = z.looseObject({
  quant_method: z.string().nullish(),
  weight_block_size: z.tuple([size, size]).nullish(),
});

const EXPECTED = {
  quant_method: 'a text',
  weight_block_size: 'two positive whole numbers: rows and columns of a block',
} as const;
/** Characters of a value in messages. */
const MOST_SHOWN = 60;

/** Methods whose tensors are read: FP8 with scales by block. */
const READABLE: readonly string[] = ['fp8'];
const INSTEAD = 'convert the original in BF16, F16, F32 or block-scaled FP8';

/** Tensor names that only one kind of quantized checkpoint has. */
const SIGNS: readonly (readonly [RegExp, string])[] = [
  [/\.qweight$/, 'gptq or awq'],
  [/\.weight_packed$/, 'compressed-tensors'],
  [/_blocks$/, 'mxfp4'],
  [/\.(absmax|quant_map)$/, 'bitsandbytes'],
  [/\.biases$/, 'MLX'],
];

/** MLX writes a field of its own, and names no method. */
function mlxBits({ quantization }: JsonObject): number | undefined {
  if (!isJsonObject(quantization ?? null)) return undefined;
  const { bits, group_size } = quantization as JsonObject;
  return typeof bits === 'number' && typeof group_size === 'number' ? bits : undefined;
}

/** What `quantization_config` says; undefined where there is none. @throws CflowError CONFIG_INVALID */
export function readQuantization(json: JsonObject, file: string): Quantization | undefined {
  const inner = isJsonObject(json.text_config) ? json.text_config.quantization_config : undefined;
  const stated = json.quantization_config ?? inner;
  const mlx = mlxBits(json) ?? (isJsonObject(json.text_config) ? mlxBits(json.text_config) : undefined);
  if (mlx !== undefined) return { method: `MLX, ${mlx} bits`, field: 'quantization', block: null };
  if (stated === undefined || stated === null || stated === false) return undefined;
  const shown = (value: JsonValue | undefined) => JSON.stringify(value)?.slice(0, MOST_SHOWN);
  if (!isJsonObject(stated)) {
    throw new CflowError('CONFIG_INVALID', `is ${shown(stated)}, an object is expected`, {
      file,
      field: 'quantization_config',
      value: stated,
      remedy: 'leave it out, or null, for a checkpoint that is not quantized',
    });
  }
  const read = schema.safeParse(stated);
  if (!read.success) {
    const field = read.error.issues[0]!.path[0] as keyof typeof EXPECTED;
    throw new CflowError('CONFIG_INVALID', `is ${shown(stated[field])}, expected ${EXPECTED[field]}`, {
      file,
      field: `quantization_config.${field}`,
      value: stated[field],
    });
  }
  const { quant_method, weight_block_size = [BLOCK, BLOCK] } = read.data;
  const method = quant_method ?? 'unknown method';
  return { method, field: 'quantization_config', block: weight_block_size };
}

/** @throws CflowError UNSUPPORTED for a method that is not read, by name */
export function refuseQuantized(quantization: Quantization | undefined, file: string): void {
  if (!quantization || READABLE.includes(quantization.method)) return;
  throw new CflowError('UNSUPPORTED', `the checkpoint is already quantized (${quantization.method})`, {
    file,
    field: quantization.field,
    value: quantization.method,
    limit: READABLE,
    remedy: INSTEAD,
  });
}

/** The same by names of tensors, for checkpoints whose config.json says nothing. @throws CflowError UNSUPPORTED */
export function refuseQuantizedNames(names: Iterable<string>, file: string): void {
  for (const name of names) {
    const sign = SIGNS.find(([pattern]) => pattern.test(name));
    if (!sign) continue;
    throw new CflowError('UNSUPPORTED', `the checkpoint is already quantized (${sign[1]})`, {
      file,
      field: name,
      remedy: INSTEAD,
    });
  }
}
