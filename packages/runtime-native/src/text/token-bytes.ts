/** The bytes that a token stands for, as far as the tokenizer's decoder joins bytes of several tokens to characters. */

/** Bytes of a token; undefined for one that ends a run of bytes, as an added token or plain text does. */
export type TokenBytes = (token: string) => readonly number[] | undefined;

interface DecoderJson {
  readonly type?: unknown;
  readonly decoders?: unknown;
}

/** @param decoder the field of tokenizer.json; @param isAdded whether a token is one of its `added_tokens` */
export function tokenBytes(decoder: unknown, isAdded: (token: string) => boolean): TokenBytes {
  const types = decoderTypes(decoder);
  if (types.includes('ByteLevel')) {
    return (token) => (isAdded(token) ? undefined : Array.from(token, (c) => BYTE_OF_CHARACTER.get(c) ?? 0));
  }
  if (types.includes('ByteFallback')) {
    return (token) => {
      const digits = /^<0x([0-9A-F]{2})>$/i.exec(token)?.[1];
      return digits === undefined ? undefined : [Number.parseInt(digits, 16)];
    };
  }
  return () => undefined;
}

function decoderTypes(decoder: unknown): unknown[] {
  if (typeof decoder !== 'object' || decoder === null) return [];
  const { type, decoders } = decoder as DecoderJson;
  return type === 'Sequence' && Array.isArray(decoders) ? decoders.flatMap(decoderTypes) : [type];
}

/** How GPT-2 writes bytes: printable ones as themselves, the others in order from U+0100. */
const BYTE_OF_CHARACTER: ReadonlyMap<string, number> = new Map(byteCharacters());

function byteCharacters(): [string, number][] {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
    return [String.fromCharCode(printable ? byte : next++), byte];
  });
}
