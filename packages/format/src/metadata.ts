import { z } from 'zod';
import { modelConfigSchema } from './config.js';

const sha256 = z.string().regex(/^[0-9a-f]{64}$/);
const crc32Hex = z.string().regex(/^[0-9a-f]{8}$/);

/** The JSON document of the metadata section. Keys of `checksums` are region names; values CRC-32 as eight hex digits. */
export const metadataSchema = z.strictObject({
  config: modelConfigSchema,
  /** Contents of tokenizer.json and of the chat template, as they were. */
  tokenizer: z
    .strictObject({
      tokenizerJson: z.string(),
      tokenizerConfigJson: z.string().optional(),
      chatTemplate: z.string().optional(),
      /** Entries of the vocabulary; rows of the embedding beyond it are never generated. */
      vocabSize: z.int().min(1),
    })
    .optional(),
  source: z.strictObject({
    /** Repository, directory name or preset; never an absolute path, so that the same input gives the same bytes. */
    name: z.string(),
    revision: z.string().optional(),
    files: z.array(z.strictObject({ name: z.string(), bytes: z.int().min(0), sha256 })).max(100_000),
  }),
  converter: z.strictObject({
    version: z.string(),
    options: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])),
  }),
  checksums: z.record(z.string(), crc32Hex),
});

export type Metadata = z.infer<typeof metadataSchema>;
