import { CflowError, ERROR_CODES } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { readGguf } from '../src/gguf/read.js';
import { openGguf } from '../src/gguf/source.js';
import { encodeGgufHead } from '../src/gguf/write.js';
import { f32, ggufFile, inMemory, list, noise, text, u32 } from './gguf-fixture.js';

const TENSOR = { dims: [32], type: 0, bytes: new Uint8Array(128) };
const SOUND = ggufFile({ 'general.architecture': text('llama') }, { a: TENSOR });
/** Magic and version, tensor count, key count; the first key begins at 24. */
const COUNTS = { tensors: 8, keys: 16 };

const read = (bytes: Uint8Array) => readGguf(inMemory(bytes));
const changed = (at: number, value: bigint): Buffer => {
  const bytes = Buffer.from(SOUND);
  bytes.writeBigUInt64LE(value, at);
  return bytes;
};

describe('a hostile head', () => {
  it('starts from a sound one', async () => {
    const { tensors, metadata } = await read(SOUND);
    expect(metadata.get('general.architecture')).toBe('llama');
    expect(tensors.get('a')).toMatchObject({ dims: [32], type: 'F32', bytes: 128 });
  });

  // Length of the key, type of its value, length of the string, then the tensor: name, dimensions, type, offset.
  const key = 24;
  const value = key + 8 + 'general.architecture'.length;
  const tensor = value + 4 + 8 + 'llama'.length;
  const dims = tensor + 8 + 1 + 4;

  it.each([
    ['2^64 − 1 tensors', changed(COUNTS.tensors, 2n ** 64n - 1n), 'LIMIT_EXCEEDED'],
    ['more tensors than bytes', changed(COUNTS.tensors, 100_000n), 'FORMAT_INVALID'],
    ['2^53 keys', changed(COUNTS.keys, 2n ** 53n), 'LIMIT_EXCEEDED'],
    ['more keys than bytes', changed(COUNTS.keys, 1_000n), 'FORMAT_INVALID'],
    ['a key longer than the file', changed(key, 10_000n), 'FORMAT_INVALID'],
    ['a key of 2^40 bytes', changed(key, 2n ** 40n), 'LIMIT_EXCEEDED'],
    ['a string longer than the file', changed(value + 4, 3_000_000n), 'FORMAT_INVALID'],
    ['a tensor of 2^62 weights', changed(dims, 2n ** 62n), 'LIMIT_EXCEEDED'],
    ['a tensor larger than the data', changed(dims, 33n), 'FORMAT_INVALID'],
    ['a tensor of no weights', changed(dims, 0n), 'FORMAT_INVALID'],
    ['a tensor behind the end', changed(dims + 12, 32n), 'FORMAT_INVALID'],
    ['a tensor off its alignment', changed(dims + 12, 4n), 'FORMAT_INVALID'],
    ['an offset of 2^63', changed(dims + 12, 2n ** 63n), 'LIMIT_EXCEEDED'],
  ])('is refused for %s', async (_, bytes, code) => {
    const error = await read(bytes).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(CflowError);
    expect(error).toMatchObject({ code });
    expect((error as Error).message).toContain('model.gguf');
  });

  it.each([
    ['no GGUF', Buffer.from('GGML....'), 'FORMAT_INVALID', 'not a GGUF file'],
    ['nothing at all', Buffer.alloc(0), 'FORMAT_INVALID', 'need 4 bytes, have 0'],
    ['version 1', ggufFile({}, {}, 1), 'VERSION_UNSUPPORTED', 'GGUF version 1'],
    ['big endian', ggufFile({}, {}, 0x03000000), 'VERSION_UNSUPPORTED', 'big-endian'],
    [
      'five dimensions',
      ggufFile({}, { a: { ...TENSOR, dims: [2, 2, 2, 2, 2] } }),
      'FORMAT_INVALID',
      '5 dimensions',
    ],
    [
      'a broken group',
      ggufFile({}, { a: { ...TENSOR, dims: [33], type: 2 } }),
      'FORMAT_INVALID',
      'no whole blocks',
    ],
    ['arrays of arrays', ggufFile({ a: list(9, [[4, []]]) }, {}), 'FORMAT_INVALID', 'array of arrays'],
    ['a value of type 13', ggufFile({ a: [13, 0] }, {}), 'FORMAT_INVALID', '13 is no type'],
    ['alignment 0', ggufFile({ 'general.alignment': u32(0) }, {}), 'FORMAT_INVALID', 'power of two'],
    ['alignment of another type', ggufFile({ 'general.alignment': f32(32.5) }, {}), 'FORMAT_INVALID', '32.5'],
  ])('is refused for %s', async (_, bytes, code, words) => {
    await expect(read(bytes)).rejects.toMatchObject({ code });
    await expect(read(bytes)).rejects.toThrowError(words);
  });

  it('is refused for duplicate keys and names, and for overlaps', async () => {
    const entry = ['k', 'u32', 1] as const;
    const twice = encodeGgufHead([entry, entry], [], 32);
    await expect(read(twice)).rejects.toThrowError('duplicate key "k"');
    const row = { name: 'a', dims: [32], typeId: 0 };
    const data = (rows: { name: string; dims: number[]; typeId: number; offset: number }[]) =>
      Buffer.concat([encodeGgufHead([], rows, 32), Buffer.alloc(512)]);
    await expect(
      read(
        data([
          { ...row, offset: 0 },
          { ...row, offset: 128 },
        ]),
      ),
    ).rejects.toThrowError('occurs twice');
    const overlap = data([
      { ...row, offset: 0 },
      { ...row, name: 'b', offset: 96 },
    ]);
    await expect(read(overlap)).rejects.toThrowError('overlaps a');
  });

  it('is refused for bytes that are no UTF-8', async () => {
    const bytes = Buffer.from(SOUND);
    bytes[key + 8] = 0xff;
    await expect(read(bytes)).rejects.toThrowError('not valid UTF-8');
  });
});

/** A head with every kind of value and the keys of a llama. */
function rich(): Buffer {
  const matrix = (rows: number, cols: number) => ({
    dims: [cols, rows],
    type: 2,
    bytes: new Uint8Array((rows * cols * 18) / 32),
  });
  const vector = { dims: [32], type: 0, bytes: new Uint8Array(Float32Array.from(noise(32, 1)).buffer) };
  return ggufFile(
    {
      'general.architecture': text('llama'),
      'general.alignment': u32(32),
      'llama.block_count': u32(1),
      'llama.context_length': u32(64),
      'llama.embedding_length': u32(32),
      'llama.feed_forward_length': u32(64),
      'llama.attention.head_count': u32(2),
      'llama.attention.layer_norm_rms_epsilon': f32(1e-6),
      'tokenizer.ggml.model': text('llama'),
      'tokenizer.ggml.tokens': list(8, ['<unk>', '▁', 'a', '▁a']),
      'tokenizer.ggml.scores': list(6, [0, -1, -2, -3]),
      'tokenizer.ggml.token_type': list(5, [2, 1, 1, 1]),
      'tokenizer.ggml.add_bos_token': [7, false],
    },
    {
      'token_embd.weight': matrix(40, 32),
      'output_norm.weight': vector,
      'blk.0.attn_norm.weight': vector,
      'blk.0.ffn_norm.weight': vector,
      'blk.0.attn_q.weight': matrix(32, 32),
      'blk.0.attn_k.weight': matrix(32, 32),
      'blk.0.attn_v.weight': matrix(32, 32),
      'blk.0.attn_output.weight': matrix(32, 32),
      'blk.0.ffn_gate.weight': matrix(64, 32),
      'blk.0.ffn_up.weight': matrix(64, 32),
      'blk.0.ffn_down.weight': matrix(32, 64),
    },
  );
}

/** Numerical Recipes’ generator: integers below `below`. */
function generator(seed: number) {
  let state = seed;
  return (below: number) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** Opening passes over a head once or twice; what reads more of a file than this goes round in circles. */
const PASSES = 10;
const MOST_READS = 200;

/** Counts what is read. */
function counted(bytes: Uint8Array) {
  const source = inMemory(bytes);
  const seen = { bytes: 0, reads: 0 };
  const read: typeof source.read = (offset, length) => {
    seen.bytes += length;
    seen.reads++;
    return source.read(offset, length);
  };
  return { source: { ...source, read }, seen };
}

describe('4,000 mutants of a head', () => {
  const sound = rich();
  const headBytes = 1_400;

  it('are opened or refused with a typed error, from few reads', async () => {
    await openGguf(inMemory(sound));
    const next = generator(42);
    const counts = { opened: 0, refused: 0 };
    for (let i = 0; i < 4_000; i++) {
      const bytes = Buffer.from(sound.subarray(0, next(8) === 0 ? next(sound.length) : sound.length));
      const changes = 1 + next(3);
      for (let c = 0; c < changes && bytes.length > 0; c++) {
        const at = next(Math.min(headBytes, bytes.length));
        bytes[at] = next(2) ? next(256) : [0, 1, 0x7f, 0x80, 0xff][next(5)]!;
      }
      const { source, seen } = counted(bytes);
      const error = await openGguf(source).then(
        () => undefined,
        (thrown: unknown) => thrown,
      );
      expect(seen.bytes, `bytes read of mutant ${i}`).toBeLessThanOrEqual(PASSES * bytes.length);
      expect(seen.reads, `reads of mutant ${i}`).toBeLessThanOrEqual(MOST_READS);
      counts[error ? 'refused' : 'opened']++;
      if (error === undefined) continue;
      if (!(error instanceof CflowError)) throw new Error(`mutant ${i}: ${String(error)}`, { cause: error });
      expect(ERROR_CODES).toContain(error.code);
      expect(error.code).not.toBe('INTERNAL');
    }
    expect(counts.refused).toBeGreaterThan(1_000);
    expect(counts.opened).toBeGreaterThan(10);
  });
});
