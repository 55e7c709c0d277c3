import { type ByteSource, memorySource } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { readSafetensorsHeader, tensorRowsF32 } from '../src/sources/safetensors.js';

/** A file of a header text and data; the length may lie. */
function file(header: string | Uint8Array, data: Uint8Array | number = 0, length?: bigint): Uint8Array {
  const text = typeof header === 'string' ? new TextEncoder().encode(header) : header;
  const body = typeof data === 'number' ? new Uint8Array(data) : data;
  const bytes = new Uint8Array(8 + text.length + body.length);
  new DataView(bytes.buffer).setBigUint64(0, length ?? BigInt(text.length), true);
  bytes.set(text, 8);
  bytes.set(body, 8 + text.length);
  return bytes;
}

const read = (bytes: Uint8Array) => readSafetensorsHeader(memorySource(bytes, 'f'));
const row = (dtype: string, shape: string, offsets: string) =>
  `{"dtype":"${dtype}","shape":${shape},"data_offsets":${offsets}}`;

describe('readSafetensorsHeader', () => {
  it('reads names, shapes, offsets and metadata, in the order of the data', async () => {
    const text = `{"b":${row('F32', '[2,3]', '[4,28]')},"__metadata__":{"format":"pt"},"a":${row('BF16', '[2]', '[0,4]')},"z":${row('F16', '[0,5]', '[4,4]')}}   `;
    const header = await read(file(text, 28));
    const start = 8 + text.length;
    expect(header.metadata).toEqual({ format: 'pt' });
    expect([...header.tensors.values()]).toEqual([
      { name: 'a', dtype: 'BF16', shape: [2], offset: start, bytes: 4 },
      { name: 'z', dtype: 'F16', shape: [0, 5], offset: start + 4, bytes: 0 },
      { name: 'b', dtype: 'F32', shape: [2, 3], offset: start + 4, bytes: 24 },
    ]);
  });

  it('takes a scalar and an empty file of tensors', async () => {
    expect((await read(file(`{"s":${row('I64', '[]', '[0,8]')}}`, 8))).tensors.get('s')?.bytes).toBe(8);
    expect((await read(file('{}'))).tensors.size).toBe(0);
  });

  it.each([99_994, 99_995, 99_996, 99_997, 99_998, 99_999, 100_000])(
    'reads a header of %i bytes exactly, and completes a read that comes back short',
    async (length) => {
      const entry = `{"a":${row('U8', '[3]', '[0,3]')}}`;
      const whole = file(entry.padEnd(length, ' '), 3);
      const reads: [number, number][] = [];
      const source: ByteSource = {
        name: 'f',
        size: whole.length,
        read: async (offset, count) => {
          reads.push([offset, count]);
          return whole.subarray(offset, offset + Math.min(count, 99_000));
        },
      };
      const header = await readSafetensorsHeader(source);
      expect(header.headerBytes).toBe(length);
      expect(header.tensors.get('a')?.offset).toBe(8 + length);
      expect(reads).toEqual([
        [0, 8],
        [8, length],
        [8 + 99_000, length - 99_000],
      ]);
    },
  );

  const fetchAgain = ' (the file is damaged; download it again)';
  const truncated = ' (the file is truncated or its tables lie; convert it again)';
  it.each<[string, Uint8Array, string, string]>([
    [
      'an empty file',
      new Uint8Array(0),
      'FORMAT_INVALID',
      `f: header length: at byte 0: need 8 bytes, have 0${truncated}`,
    ],
    [
      'seven bytes',
      new Uint8Array(7),
      'FORMAT_INVALID',
      `f: header length: at byte 0: need 8 bytes, have 7${truncated}`,
    ],
    ['a header of 0 bytes', file('', 4), 'FORMAT_INVALID', 'f: header length: header of 0 bytes, at least 2'],
    [
      'a header longer than the file',
      file('{}', 0, 3n),
      'FORMAT_INVALID',
      'f: header length: truncated: the header has 3 bytes and 1 of them are missing (download it again)',
    ],
    [
      'a header of 2^64 - 1 bytes',
      file('{}', 0, 2n ** 64n - 1n),
      'LIMIT_EXCEEDED',
      'f: header length: header of 18446744073709551615 bytes, at most 100000000 (is this a safetensors file?)',
    ],
    [
      'a Git LFS pointer',
      new TextEncoder().encode('version https://git-lfs.github.com/spec/v1\n'),
      'FORMAT_INVALID',
      'f: a Git LFS pointer, not the file itself (fetch it with `git lfs pull`, or name the repository as hf:org/name)',
    ],
    [
      'leading space',
      file(' {}'),
      'FORMAT_INVALID',
      `f: at byte 8: the header must begin with "{"${fetchAgain}`,
    ],
    ['invalid UTF-8', file(Uint8Array.of(0x7b, 0xff, 0x7d)), 'FORMAT_INVALID', 'f: not valid UTF-8'],
    [
      'a duplicate name',
      file(`{"a":${row('U8', '[0]', '[0,0]')},"a":${row('U8', '[0]', '[0,0]')}}`),
      'FORMAT_INVALID',
      'f: not valid JSON at line 1, column 54: duplicate key "a"',
    ],
    [
      'metadata that is no string',
      file('{"__metadata__":{"a":1}}'),
      'FORMAT_INVALID',
      `f: __metadata__: "a" must be a string${fetchAgain}`,
    ],
    [
      'an unknown dtype',
      file(`{"a":${row('Q4', '[2]', '[0,1]')}}`, 1),
      'UNSUPPORTED',
      'f: a: unknown dtype "Q4"',
    ],
    [
      'a dtype of the prototype',
      file(`{"a":${row('toString', '[2]', '[0,1]')}}`, 1),
      'UNSUPPORTED',
      'f: a: unknown dtype "toString"',
    ],
    [
      'offsets beyond the data',
      file(`{"a":${row('U8', '[5]', '[0,5]')}}`, 4),
      'FORMAT_INVALID',
      'f: a: truncated: it ends at byte 5 of the data, and 1 of them are missing (download the file again)',
    ],
    [
      'offsets in reverse',
      file(`{"a":${row('U8', '[2]', '[2,0]')}}`, 2),
      'FORMAT_INVALID',
      `f: a: data_offsets [2, 0] are not within the 2 bytes of data${fetchAgain}`,
    ],
    [
      'a length that the shape contradicts',
      file(`{"a":${row('F32', '[2,3]', '[0,20]')}}`, 20),
      'FORMAT_INVALID',
      'f: a: shape [2,3] of F32 needs 24 bytes, data_offsets give 20',
    ],
    [
      'a product that wraps in 64 bits',
      file(`{"a":${row('F32', '[4294967296,4294967296]', '[0,0]')}}`),
      'FORMAT_INVALID',
      'f: a: shape [4294967296,4294967296] has more elements than can be counted',
    ],
    [
      'an overlap',
      file(`{"a":${row('U8', '[3]', '[0,3]')},"b":${row('U8', '[2]', '[2,4]')}}`, 4),
      'FORMAT_INVALID',
      `f: b: at byte 115: bytes 2 to 4, overlaps "a" (bytes 0 to 3)${fetchAgain}`,
    ],
    [
      'a gap',
      file(`{"a":${row('U8', '[1]', '[0,1]')},"b":${row('U8', '[2]', '[2,4]')}}`, 4),
      'FORMAT_INVALID',
      `f: b: at byte 115: bytes 2 to 4, leaves a gap of 1 bytes behind "a" (bytes 0 to 1)${fetchAgain}`,
    ],
    [
      'bytes after the last tensor',
      file(`{"a":${row('U8', '[1]', '[0,1]')}}`, 3),
      'FORMAT_INVALID',
      `f: at byte 62: 2 bytes after the last tensor${fetchAgain}`,
    ],
  ])('rejects %s', async (_name, bytes, code, message) => {
    await expect(read(bytes)).rejects.toMatchObject({ code, message });
  });

  it.each([
    ['{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}', 'shape.0'],
    ['{"dtype":"U8","shape":[1.5],"data_offsets":[0,0]}', 'shape.0'],
    ['{"dtype":"U8","shape":[9007199254740993],"data_offsets":[0,0]}', 'shape.0'],
    ['{"dtype":"U8","shape":[0],"data_offsets":[0]}', 'data_offsets'],
    ['{"dtype":"U8","shape":[0]}', 'data_offsets'],
    ['{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}', 'entry'],
    ['{"dtype":7,"shape":[0],"data_offsets":[0,0]}', 'dtype'],
    ['[]', 'entry'],
    ['null', 'entry'],
  ])('rejects the entry %s', async (entry, field) => {
    await expect(read(file(`{"a":${entry}}`))).rejects.toMatchObject({
      code: 'FORMAT_INVALID',
      message: expect.stringContaining(`f: a: not a tensor entry: ${field}: `),
    });
  });
});

describe('tensorRowsF32', () => {
  async function rows(dtype: string, shape: string, data: Uint8Array, from: number, count: number) {
    const source = memorySource(file(`{"a":${row(dtype, shape, `[0,${data.length}]`)}}`, data), 'f');
    const { tensors } = await readSafetensorsHeader(source);
    return tensorRowsF32(source, tensors.get('a')!, from, count);
  }
  const halves = (...values: number[]) => new Uint8Array(Uint16Array.from(values).buffer);
  const bits = (values: Float32Array) => [
    ...new Uint32Array(values.buffer, values.byteOffset, values.length),
  ];

  it('reads rows of a matrix, elements of a vector and slices of three dimensions', async () => {
    const data = new Uint8Array(Float32Array.from({ length: 12 }, (_, i) => i).buffer);
    expect([...(await rows('F32', '[4,3]', data, 1, 2))]).toEqual([3, 4, 5, 6, 7, 8]);
    expect([...(await rows('F32', '[12]', data, 10, 2))]).toEqual([10, 11]);
    expect([...(await rows('F32', '[3,2,2]', data, 2, 1))]).toEqual([8, 9, 10, 11]);
    expect(await rows('F32', '[4,3]', data, 4, 0)).toHaveLength(0);
    await expect(rows('F32', '[4,3]', data, 3, 2)).rejects.toThrow('f: a: rows 3..5 of 4');
  });

  it('keeps f32 to the bit, payloads of NaN included', async () => {
    const words = [0x7fa12345, 0x80000000, 0x00000001, 0xff800000];
    expect(bits(await rows('F32', '[4]', new Uint8Array(Uint32Array.from(words).buffer), 0, 4))).toEqual(
      words,
    );
  });

  it('widens bf16 to the bit', async () => {
    const got = await rows('BF16', '[4]', halves(0x3f80, 0xc049, 0x0001, 0x7fa1), 0, 4);
    expect(bits(got)).toEqual([0x3f800000, 0xc0490000, 0x00010000, 0x7fa10000]);
  });

  it('widens f16 to the bit: normal, subnormal, zero, infinite, NaN (values of IEEE 754)', async () => {
    const got = await rows(
      'F16',
      '[9]',
      halves(0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x83ff, 0x8000, 0xfc00, 0x7e01),
      0,
      9,
    );
    expect([...got.subarray(0, 6)]).toEqual([1, -2, 65504, 2 ** -14, 2 ** -24, -1023 * 2 ** -24]);
    expect(bits(got).slice(6)).toEqual([0x80000000, 0xff800000, 0x7fc02000]);
  });

  it('rounds f64 to nearest even', async () => {
    const data = new Uint8Array(Float64Array.of(1 + 2 ** -24, 1 + 3 * 2 ** -24, 0.1).buffer);
    expect(bits(await rows('F64', '[3]', data, 0, 3))).toEqual([0x3f800000, 0x3f800002, 0x3dcccccd]);
  });

  it('refuses other dtypes by name and count', async () => {
    await expect(rows('I8', '[2,3]', new Uint8Array(6), 0, 1)).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: 'f: a: 6 values of dtype I8 (convert a checkpoint of F32, F16, BF16, F64, F8_E4M3, F8_E5M2)',
    });
  });
});
