import zlib from 'node:zlib';
import { random } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import { crc32, crcHex } from '../src/index.js';

const next = random(7);
const bytesOf = (length: number) => Uint8Array.from({ length }, () => next() & 255);

describe('crc32', () => {
  it('has the check value of the standard', () => {
    expect(crcHex(crc32(new TextEncoder().encode('123456789')))).toBe('cbf43926');
  });

  it('is 0 for nothing, and keeps a seed over nothing', () => {
    expect(crc32(new Uint8Array(0))).toBe(0);
    expect(crc32(new Uint8Array(0), 0xdeadbeef)).toBe(0xdeadbeef);
  });

  it('agrees with zlib on every length around its steps of eight, with and without seed', () => {
    for (let length = 0; length < 70; length++) {
      const bytes = bytesOf(length);
      const seed = next();
      expect(crc32(bytes)).toBe(zlib.crc32(bytes));
      expect(crc32(bytes, seed)).toBe(zlib.crc32(bytes, seed));
    }
  });

  it('gives the same in pieces, at odd offsets of a buffer', () => {
    const bytes = bytesOf(10_007);
    const expected = zlib.crc32(bytes);
    for (const cut of [1, 3, 8, 4_097, 10_006]) {
      expect(crc32(bytes.subarray(cut), crc32(bytes.subarray(0, cut)))).toBe(expected);
    }
  });

  it('writes eight digits', () => {
    expect(crcHex(0xab)).toBe('000000ab');
  });
});
