/** The metadata of a file in the documents of version 6: what is needed to open it, the tokenizer, and what may change. */

import { z } from 'zod';
import { decodeDocument, type Metadata, metadataSchema } from './metadata.js';

const { tokenizer, generation, extensions } = metadataSchema.shape;

/** In front of the streams. */
export const headDocumentSchema = metadataSchema.pick({ config: true, source: true, converter: true });
/** Behind the streams: nobody needs it to find a weight. */
export const tokenizerDocumentSchema = tokenizer.unwrap().omit({ chatTemplate: true });
/** Behind the streams, with slack: what may be replaced in place. */
export const settingsDocumentSchema = z.strictObject({
  chatTemplate: tokenizer.unwrap().shape.chatTemplate,
  generation,
  extensions,
});

/** The documents as bytes; `tokenizer` is absent where a model has none. */
export interface Documents {
  readonly metadata: Uint8Array;
  readonly tokenizer?: Uint8Array;
  readonly settings: Uint8Array;
}

function encode(schema: z.ZodType, document: unknown): Uint8Array {
  return new TextEncoder().encode(JSON.stringify(schema.parse(document)));
}

/** Splits metadata into documents; the same metadata give the same bytes. */
export function encodeDocuments(metadata: Omit<Metadata, 'checksums'>): Documents {
  const { config, source, converter, generation: sampling, extensions: kept } = metadata;
  const { chatTemplate, ...words } = metadata.tokenizer ?? {};
  const settings = {
    ...(chatTemplate === undefined ? {} : { chatTemplate }),
    ...(sampling ? { generation: sampling } : {}),
    ...(kept ? { extensions: kept } : {}),
  };
  return {
    metadata: encode(headDocumentSchema, { config, source, converter }),
    ...(metadata.tokenizer ? { tokenizer: encode(tokenizerDocumentSchema, words) } : {}),
    settings: encodeSettings(settings),
  };
}

/** The document of what may be replaced in place, as bytes. */
export function encodeSettings(settings: z.infer<typeof settingsDocumentSchema>): Uint8Array {
  return encode(settingsDocumentSchema, settings);
}

/** The inverse. */
export function decodeSettings(bytes: Uint8Array, file: string): z.infer<typeof settingsDocumentSchema> {
  return decodeDocument(settingsDocumentSchema, bytes, { file, field: 'settings' });
}

/** The document in front of the streams. */
export function decodeHeadDocument(bytes: Uint8Array, file: string): z.infer<typeof headDocumentSchema> {
  return decodeDocument(headDocumentSchema, bytes, { file, field: 'metadata' });
}

/** What the documents behind the streams add to the metadata. */
export function decodeTail(
  documents: { readonly tokenizer?: Uint8Array | undefined; readonly settings?: Uint8Array | undefined },
  file: string,
): Pick<Metadata, 'tokenizer' | 'generation' | 'extensions'> {
  const at = (field: string) => ({ file, field });
  const words =
    documents.tokenizer && decodeDocument(tokenizerDocumentSchema, documents.tokenizer, at('tokenizer'));
  const settings = documents.settings && decodeSettings(documents.settings, file);
  const { chatTemplate, ...rest } = settings ?? {};
  if (!words) return rest;
  return { ...rest, tokenizer: { ...words, ...(chatTemplate === undefined ? {} : { chatTemplate }) } };
}
