/** Files whose metadata are wrong. */

import { guardedSource } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import { decodeMetadata, openModel, regionOf } from '../src/index.js';
import { fails, SOUND, seal } from './malformed.js';

describe('metadata', () => {
  const { bytes, layout } = SOUND.cflow;
  const region = regionOf(layout, 'metadata');
  const text = new TextDecoder().decode(bytes.subarray(region.offset, region.offset + region.length));

  /** The file with another document of the same length: shorter ones are padded with spaces. */
  function withText(document: string): Uint8Array {
    const encoded = Buffer.from(document, 'latin1');
    const copy = bytes.slice();
    copy.fill(0x20, region.offset, region.offset + region.length);
    copy.set(encoded.subarray(0, region.length), region.offset);
    return seal(copy, layout);
  }
  const replaced = (from: string, to: string) => {
    expect(text).toContain(from);
    return withText(text.replace(from, to));
  };

  it.each([
    ['not JSON', 'hello', /^m\.cflow: metadata: not UTF-8 JSON: .*JSON/],
    ['not UTF-8', '{"a":"\xff"}', /^m\.cflow: metadata: not UTF-8 JSON: The encoded data was not valid/],
    ['a BOM', '\xef\xbb\xbf{}', /^m\.cflow: metadata: not UTF-8 JSON: /],
    ['nested 65 deep', '['.repeat(65), /^m\.cflow: metadata: at byte 64: nested deeper than 64$/],
    [
      'nested 100,000 deep',
      '{"a":'.repeat(100_000),
      /^m\.cflow: metadata: at byte 320: nested deeper than 64$/,
    ],
  ])('%s', async (_, document, message) => {
    await fails(withText(document), 'FORMAT_INVALID', message);
  });

  it('brackets inside strings are no nesting', async () => {
    await fails(
      withText(`{"${'['.repeat(99)}\\"${'{'.repeat(99)}":1}`),
      'CONFIG_INVALID',
      /^m\.cflow: metadata: config: /,
    );
  });

  it.each([
    [
      'an unknown key',
      '"tiedEmbeddings":false',
      '"tiedEmbeddingz":false',
      'config: Unrecognized key: "tiedEmbeddingz"',
    ],
    ['a wrong type', '"denseDelay":1', '"denseDelay":"', 'not UTF-8'],
    ['a wrong value', '"denseDelay":1', '"denseDelay":9', 'dense_delay is 1, expected 9'],
    ['no checksum', '"embedding":"', '"embeddinx":"', 'metadata.checksums: no checksum for embedding'],
  ])('%s', async (_, from, to, problem) => {
    await expect(openModel(guardedSource(replaced(from, to)))).rejects.toMatchObject({
      name: 'CflowError',
      message: expect.stringContaining(problem),
    });
  });

  it.each(['__proto__', 'constructor', 'toString', 'hasOwnProperty'])(
    '%s as a key pollutes nothing and is refused',
    async (key) => {
      const before = Object.getOwnPropertyNames(Object.prototype);
      const decode = (document: string) => () => decodeMetadata(new TextEncoder().encode(document), 'm');
      const refused = {
        code: 'CONFIG_INVALID',
        message: expect.stringMatching(/^m: metadata: (config|source)/),
      };
      expect(decode(text.replace('"name":"unnamed"', `"${key}":{"x":1}`))).toThrowError(
        expect.objectContaining(refused),
      );
      expect(decode(text.replace('"source":{', `"source":{"${key}":{"x":1},`))).toThrowError(
        expect.objectContaining({ ...refused, message: `m: metadata: source: Unrecognized key: "${key}"` }),
      );
      const inSums = text.replace(/"layers\.0\.attention":"/, `"${key}":"`);
      const message = 'm.cflow: metadata.checksums: no checksum for layers.0.attention';
      await fails(withText(inSums), 'FORMAT_INVALID', message);
      expect(Object.getOwnPropertyNames(Object.prototype)).toEqual(before);
      expect(({} as Record<string, unknown>).x).toBeUndefined();
    },
  );
});
