import { z } from 'zod';
import { CflowError, invalid } from '../errors.js';
import { MAX_JSON_DEPTH } from '../limits.js';
import { modelConfigSchema } from '../model/config.js';

const sha256 = z.string().regex(/^[0-9a-f]{64}$/);
const crc32Hex = z.string().regex(/^[0-9a-f]{8}$/);

/** The JSON document of the metadata section. Keys of `checksums` are region names; values CRC-32 as eight hex digits. */
export const metadataSchema = z.strictObject({
  config: modelConfigSchema,
  /** Contents of tokenizer.json and of the chat template, as they were. */
  tokenizer: z
    .strictObject({
      /** Text of tokenizer.json, as it was. */
      tokenizerJson: z.string(),
      /** Text of tokenizer_config.json, as it was. */
      tokenizerConfigJson: z.string().optional(),
      /** Text of the chat template, as it was. */
      chatTemplate: z.string().optional(),
      /** Entries of the vocabulary; rows of the embedding beyond it are never generated. */
      vocabSize: z.int().min(1),
    })
    .optional(),
  /** What generation_config.json says about sampling. */
  generation: z
    .strictObject({
      /** Divides the logits. */
      temperature: z.number().min(0).max(100).optional(),
      /** Most likely tokens that are sampled from; 0 = all. */
      topK: z
        .int()
        .min(0)
        .max(2 ** 31)
        .optional(),
      /** Share of probability that is sampled from. */
      topP: z.number().min(0).max(1).optional(),
      /** Least probability, as a share of the largest. */
      minP: z.number().min(0).max(1).optional(),
      /** Share of probability of typical sampling. */
      typicalP: z.number().min(0).max(1).optional(),
      /** Divides positive logits of tokens that occurred, multiplies negative ones. */
      repetitionPenalty: z.number().positive().max(100).optional(),
    })
    .optional(),
  /** Where the weights are from. */
  source: z.strictObject({
    /** Repository, directory name or preset; never an absolute path, so that the same input gives the same bytes. */
    name: z.string(),
    /** Commit of the repository. */
    revision: z.string().optional(),
    /** Files that the model was made from; never absolute paths. */
    files: z
      .array(
        z.strictObject({
          /** Within the directory or repository. */
          name: z.string(),
          /** Its size. */
          bytes: z.int().min(0),
          /** SHA-256, 64 lower-case hexadecimal digits. */
          sha256,
        }),
      )
      .max(100_000),
  }),
  /** What made the file. */
  converter: z.strictObject({
    /** Release of the converter. */
    version: z.string(),
    /** Texts, numbers and booleans by name. */
    options: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])),
  }),
  /** CRC-32 as eight lower-case hexadecimal digits, by region: every stream and expert table, nothing else. */
  checksums: z.record(z.string(), crc32Hex),
  /** Version 6 alone: whatever else belongs to the file, by name; readers keep it and do not look at it. */
  extensions: z.record(z.string(), z.json()).optional(),
});

/** The metadata document of a file, checked. */
export type Metadata = z.infer<typeof metadataSchema>;

/** Parses and checks the metadata document. */
export function decodeMetadata(bytes: Uint8Array, file: string): Metadata {
  return decodeDocument(version5Schema, bytes, { file, field: 'metadata' });
}

/** What version 5 knows. */
const version5Schema = metadataSchema.omit({ extensions: true });

/**
 * Parses a JSON document and checks it against its schema.
 * @throws CflowError FORMAT_INVALID (no UTF-8 JSON, too deep), CONFIG_INVALID (other keys or types)
 */
export function decodeDocument<T>(
  schema: z.ZodType<T>,
  bytes: Uint8Array,
  at: { readonly file: string; readonly field: string },
): T {
  checkDepth(bytes, at);
  let json: unknown;
  try {
    json = JSON.parse(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes));
  } catch (cause) {
    throw new CflowError('FORMAT_INVALID', `not UTF-8 JSON: ${(cause as Error).message}`, { ...at, cause });
  }
  const result = schema.safeParse(json);
  if (result.success) return result.data;
  const problems = result.error.issues
    .slice(0, 5)
    .map((issue) => `${issue.path.join('.')}: ${issue.message}`);
  throw new CflowError('CONFIG_INVALID', problems.join('; '), at);
}

const BYTE = { quote: 0x22, backslash: 0x5c, open: 0x5b, openBrace: 0x7b, close: 0x5d, closeBrace: 0x7d };

/** Nesting is bounded before parsing, so that neither JSON.parse nor the schema recurses without end. */
function checkDepth(bytes: Uint8Array, at: { readonly file: string; readonly field: string }): void {
  let depth = 0;
  let inString = false;
  for (let i = 0; i < bytes.length; i++) {
    const c = bytes[i]!;
    if (inString) {
      if (c === BYTE.backslash) i++;
      else if (c === BYTE.quote) inString = false;
    } else if (c === BYTE.quote) inString = true;
    else if (c === BYTE.open || c === BYTE.openBrace) {
      if (++depth > MAX_JSON_DEPTH) invalid(`nested deeper than ${MAX_JSON_DEPTH}`, { ...at, offset: i });
    } else if (c === BYTE.close || c === BYTE.closeBrace) depth--;
  }
}
