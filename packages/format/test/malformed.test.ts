import { describe, expect, it } from 'vitest';
import { writeStruct } from '../src/binary.js';
import {
  type Container,
  crc32,
  decodeMetadata,
  decodeStream,
  type ErrorCode,
  EXPERT_ENTRY,
  GLOBAL_HEADER,
  type Layout,
  openModel,
  readTensor,
  regionOf,
  type Struct,
  VFLOW_HEADER,
  VOCAB_ENTRY,
} from '../src/index.js';
import { guardedSource, makeBareModel, makeConfig, makeModel } from './support.js';

const CONFIG = makeConfig({ layers: 2, denseDelay: 1, expertDelay: 1 });
const CONTAINERS: Container[] = ['cflow', 'vflow'];
const HEADER = { cflow: GLOBAL_HEADER, vflow: VFLOW_HEADER };
const SOUND = {
  cflow: await makeModel(CONFIG, 'q4_0', 'cflow'),
  vflow: await makeModel(CONFIG, 'q4_0', 'vflow'),
};

const fieldAt = ({ fields }: Struct, name: string) => fields.find((field) => field.name === name)!;

/** Writes `value` into a field, of the width that it has. */
function poke(bytes: Uint8Array, struct: Struct, base: number, name: string, value: number | bigint): void {
  const { type, offset } = fieldAt(struct, name);
  const view = new DataView(bytes.buffer);
  const at = base + offset;
  if (type === 'f32') view.setFloat32(at, Number(value), true);
  else if (type === 'u8') view.setUint8(at, Number(value));
  else if (type === 'u16') view.setUint16(at, Number(value), true);
  else if (type === 'u32') view.setUint32(at, Number(value), true);
  else view.setBigUint64(at, BigInt(value), true);
}

/** Makes the head checksum right again, so that the checks behind it are the ones tested. */
function seal(bytes: Uint8Array, { container, regions }: Layout): Uint8Array {
  const table = regions.find(({ name }) => name === 'layer_table')!;
  const end = table.offset + table.length;
  poke(bytes, HEADER[container], 0, 'head_checksum', 0);
  poke(bytes, HEADER[container], 0, 'head_checksum', crc32(bytes.subarray(0, end)));
  return bytes;
}

async function fails(bytes: Uint8Array, code: ErrorCode, message: string | RegExp): Promise<void> {
  const expected = typeof message === 'string' ? message : expect.stringMatching(message);
  await expect(openModel(guardedSource(bytes))).rejects.toMatchObject({
    name: 'CflowError',
    code,
    message: expected,
  });
}

const changed = (container: Container, change: (bytes: Uint8Array, layout: Layout) => void) => {
  const { bytes, layout } = SOUND[container];
  const copy = bytes.slice();
  change(copy, layout);
  return copy;
};

describe('what is no cflow file', () => {
  it.each([
    ['empty', 0, 'm.cflow: magic: need at least 64 bytes of header, have 0 (the file is empty or truncated)'],
    [
      'ten bytes',
      10,
      'm.cflow: magic: need at least 64 bytes of header, have 10 (the file is empty or truncated)',
    ],
  ])('%s', async (_, length, message) => {
    await fails(SOUND.cflow.bytes.slice(0, length), 'FORMAT_INVALID', message);
  });

  it('another magic', async () => {
    const bytes = new TextEncoder().encode(`GGUF${'x'.repeat(200)}`);
    const message =
      'm.cflow: magic: at byte 0: magic is "GGUFxxxx", expected "CFLOW\\0\\0\\0" or "VFLOW\\0\\0\\0" (this is not a cflow file)';
    await fails(bytes, 'FORMAT_INVALID', message);
  });

  it.each([
    ['cflow', 4, 'convert the checkpoint again'],
    ['cflow', 6, 'use a newer cflow'],
    ['vflow', 4, 'convert the checkpoint again'],
    ['vflow', 6, 'use a newer cflow'],
  ] as const)('.%s of version %d', async (container, version, remedy) => {
    const message = `m.cflow: version: at byte 8: version ${version} of the format, this cflow reads version 5 (${remedy})`;
    await fails(
      changed(container, (bytes) => (bytes[8] = version)),
      'VERSION_UNSUPPORTED',
      message,
    );
  });
});

describe.each(CONTAINERS)('.%s cut and padded', (container) => {
  const { bytes, layout } = SOUND[container];

  it('truncated at every region boundary, one byte before and after', async () => {
    const cuts = layout.regions.flatMap(({ offset }) => [offset - 1, offset, offset + 1]);
    for (const cut of [...cuts, bytes.length - 1]) {
      if (cut < 0) continue;
      const short = guardedSource(bytes.slice(0, cut));
      await expect(openModel(short), `cut at ${cut}`).rejects.toMatchObject({ code: 'FORMAT_INVALID' });
    }
  });

  it('says how many bytes there are', async () => {
    const message =
      container === 'cflow'
        ? `m.cflow: file_size: header says ${bytes.length} bytes, the file has ${bytes.length - 1} (the file is truncated or was padded; copy or convert it again)`
        : /^m\.cflow: lm_head: at byte \d+: ends at \d+, the file has \d+ bytes \(the file is truncated\)$/;
    await fails(bytes.slice(0, -1), 'FORMAT_INVALID', message);
  });

  it.each([1, 4_096])('%d bytes appended', async (extra) => {
    const longer = new Uint8Array(bytes.length + extra);
    longer.set(bytes);
    const message =
      container === 'cflow'
        ? /^m\.cflow: file_size: header says \d+ bytes, the file has \d+/
        : `m.cflow: at byte ${bytes.length}: ${extra} bytes after the last region (the file was padded or appended to)`;
    await fails(longer, 'FORMAT_INVALID', message);
  });

  it('any flipped bit of the head is found by its checksum or before', async () => {
    const table = regionOf(layout, 'layer_table');
    for (let at = 0; at < table.offset + table.length; at += 13) {
      const bad = changed(container, (copy) => (copy[at]! ^= 1 << (at & 7)));
      await expect(openModel(guardedSource(bad)), `byte ${at}`).rejects.toMatchObject({ name: 'CflowError' });
    }
  });

  it('names the checksums when only they differ', async () => {
    const { offset } = regionOf(layout, 'layer_table');
    const message =
      /^m\.cflow: head_checksum: at byte \d+: checksum of the head is [0-9a-f]{8}, the file says [0-9a-f]{8}/;
    await fails(
      changed(container, (copy) => (copy[offset]! ^= 1)),
      'VERIFY_FAILED',
      message,
    );
  });
});

describe.each(CONTAINERS)('.%s whose tables lie', (container) => {
  /** The offset in the layer table of `field` of layer 1. */
  const entry = ({ regions }: Layout, field: number) =>
    regions.find(({ name }) => name === 'layer_table')!.offset + 64 + field;
  const lie = (field: number, value: bigint) =>
    changed(container, (bytes, layout) => {
      new DataView(bytes.buffer).setBigUint64(entry(layout, field), value, true);
      seal(bytes, layout);
    });
  const place = (name: string) => regionOf(SOUND[container].layout, name);
  const { layout } = SOUND[container];

  it('two streams at one place', async () => {
    const { offset } = place('layers.0.attention');
    const message =
      /^m\.cflow: layers\.[01]\.attention: at byte \d+: overlaps layers\.[01]\.attention, which ends at \d+$/;
    await fails(lie(0, BigInt(offset)), 'FORMAT_INVALID', message);
  });

  it('a stream not on a page', async () => {
    const { offset } = place('layers.1.attention');
    const message = `m.cflow: layers.1.attention: at byte ${offset + 1}: starts at ${offset + 1}, not a multiple of 4096`;
    await fails(lie(0, BigInt(offset + 1)), 'FORMAT_INVALID', message);
  });

  it('a wrong length', async () => {
    const { offset, length } = place('layers.1.attention');
    const message = `m.cflow: layers.1.attention: at byte ${offset}: has ${length + 1} bytes, its tensors need ${length}`;
    await fails(lie(8, BigInt(length + 1)), 'FORMAT_INVALID', message);
  });

  it('a stream beyond the end', async () => {
    await fails(lie(0, 2n ** 52n), 'FORMAT_INVALID', /^m\.cflow: .* bytes after|leaves a gap/);
  });

  it('a stream missing', async () => {
    const bytes = changed(container, (copy) => {
      copy.fill(0, entry(layout, 0), entry(layout, 16));
      seal(copy, layout);
    });
    const message = 'm.cflow: layers.1.attention: the table does not say where it is';
    await fails(bytes, 'FORMAT_INVALID', message);
  });

  it('an offset over 2^53, with its byte in the file', async () => {
    const at = entry(layout, 0);
    const message = `m.cflow: LayerEntry.attention_offset: at byte ${at}: 18446744073709551615 is over the limit of 9007199254740991`;
    await fails(lie(0, 2n ** 64n - 1n), 'LIMIT_EXCEEDED', message);
  });

  it('an expert table of another size, or somewhere else', async () => {
    const { offset } = place('layers.1.expert_table');
    const message = 'm.cflow: layers.1.expert_table: has 49 bytes, 3 experts need 48';
    await fails(lie(56, 49n), 'FORMAT_INVALID', message);
    await fails(lie(48, BigInt(offset + 8)), 'FORMAT_INVALID', /layers\.1\.experts/);
    const far = 'layers.1.expert_table: at byte 1099511627776: need 48 bytes, have 0';
    await fails(lie(48, 2n ** 40n), 'FORMAT_INVALID', new RegExp(far));
  });

  it('an expert elsewhere: the expert table has no checksum in the head', async () => {
    const { offset } = place('layers.1.expert_table');
    const other = place('layers.1.experts.0');
    const bytes = changed(container, (copy) =>
      writeStruct(EXPERT_ENTRY, copy, offset + 16, { offset: other.offset, length: other.length }),
    );
    await fails(bytes, 'FORMAT_INVALID', /overlaps layers\.1\.experts\.[01], which ends at/);
  });

  it('an expert table that is all there but not on a multiple of 8', async () => {
    const { offset } = place('layers.1.expert_table');
    const bytes = changed(container, (copy) => {
      copy.copyWithin(offset + 4, offset, offset + 48);
      new DataView(copy.buffer).setBigUint64(entry(layout, 48), BigInt(offset + 4), true);
      seal(copy, layout);
    });
    const message = `m.cflow: layers.1.expert_table: at byte ${offset + 4}: starts at ${offset + 4}, not a multiple of 8`;
    await fails(bytes, 'FORMAT_INVALID', message);
  });

  it('a page that belongs to nothing', async () => {
    const { offset } = place('lm_head');
    const embedding = place('embedding');
    const { bytes } = SOUND[container];
    const longer = new Uint8Array(bytes.length + 4_096);
    longer.set(bytes);
    longer.copyWithin(offset + 4_096, offset, bytes.length);
    const vocab = place('layer_table').offset + 2 * 64;
    poke(longer, VOCAB_ENTRY, vocab, 'lm_head_offset', offset + 4_096);
    if (container === 'cflow') poke(longer, GLOBAL_HEADER, 0, 'file_size', longer.length);
    const gap = offset + 4_096 - embedding.offset - embedding.length;
    const message = `m.cflow: lm_head: at byte ${offset + 4_096}: leaves a gap of ${gap} bytes after embedding`;
    await fails(seal(longer, layout), 'FORMAT_INVALID', message);
  });

  it('experts of a layer that has none', async () => {
    const dense = await makeModel(makeConfig({ experts: 0 }), 'q4_0', container);
    new DataView(dense.bytes.buffer).setBigUint64(entry(dense.layout, 48), 4096n, true);
    const message =
      'm.cflow: layers.1.expert_table: the table points to a stream that the config does not have';
    await fails(seal(dense.bytes, dense.layout), 'FORMAT_INVALID', message);
  });
});

describe('.vflow whose groups lie', () => {
  const { bytes, layout } = SOUND.vflow;
  const group = regionOf(layout, 'group_table').offset;

  it('another span', async () => {
    const bad = bytes.slice();
    bad[group + 16]! ^= 1;
    const message = /^m\.cflow: group_table\[0\]: length is \d+, the layer table gives \d+$/;
    await fails(seal(bad, layout), 'FORMAT_INVALID', message);
  });

  it('a reserved field that is not zero', async () => {
    const bad = bytes.slice();
    bad[group + 4] = 1;
    const message = 'm.cflow: group_table[0]: reserved is 1, the layer table gives 0';
    await fails(seal(bad, layout), 'FORMAT_INVALID', message);
  });

  it('another count: the layer table is then looked for elsewhere', async () => {
    const bad = bytes.slice();
    poke(bad, VFLOW_HEADER, 0, 'group_count', 65_535);
    await expect(openModel(guardedSource(bad))).rejects.toMatchObject({ name: 'CflowError' });
  });
});

describe.each(CONTAINERS)('.%s header', (container) => {
  const { layout } = SOUND[container];
  const contradiction = '(header and metadata contradict each other; convert the checkpoint again)';

  it.each([
    ['hidden_dim', 41, 'hidden_dim is 41, expected 40'],
    ['num_layers', 3, 'num_layers is 3, expected 2'],
    ['num_experts', 4, 'num_experts is 4, expected 3'],
    ['vocab_size', 131, 'vocab_size is 131, expected 130'],
    ['dense_delay', 0, 'dense_delay is 0, expected 1'],
    ['combine_style', 2, 'combine_style is 2, expected 1'],
    ['feature_flags', 8, 'feature_flags is 8, expected 0'],
    ['final_logit_softcap', Number.NaN, 'final_logit_softcap is NaN, expected 0'],
  ])('%s = %d against the metadata', async (field, value, problem) => {
    const bytes = changed(container, (copy) => {
      poke(copy, HEADER[container], 0, field, value);
      seal(copy, layout);
    });
    await fails(bytes, 'FORMAT_INVALID', `m.cflow: header: ${problem} ${contradiction}`);
  });

  it.each([
    ['quant_type', 4, 'm.cflow: quant_type: 4 is no tile dtype, known are 0 to 3'],
    [
      'quant_group',
      31,
      'm.cflow: header: quant_group is 31, expected 32 (the file is damaged; convert it again)',
    ],
    ['metadata_offset', 90, 'm.cflow: metadata: at byte 90: starts at 90, expected'],
  ])('%s = %d', async (field, value, problem) => {
    const bytes = changed(container, (copy) => poke(copy, HEADER[container], 0, field, value));
    await fails(bytes, 'FORMAT_INVALID', new RegExp(`^${problem.replace(/[()]/g, '\\$&')}`));
  });

  it('metadata of 4 GB, and longer than the file', async () => {
    const claim = (length: number) =>
      changed(container, (copy) => poke(copy, HEADER[container], 0, 'metadata_length', length));
    const at = HEADER[container].bytes;
    const over = `m.cflow: metadata: at byte ${at}: 4294967295 bytes, the limit is 268435456`;
    await fails(claim(2 ** 32 - 1), 'LIMIT_EXCEEDED', over);
    const short = new RegExp(`^m\\.cflow: metadata: at byte ${at}: need 100000000 bytes, have \\d+`);
    await fails(claim(100_000_000), 'FORMAT_INVALID', short);
  });

  describe('without metadata', () => {
    const bare = (field: string, value: number) => {
      const made = makeBareModel(CONFIG, 'q4_0', container);
      poke(made.bytes, HEADER[container], 0, field, value);
      return seal(made.bytes, made.layout);
    };
    const remedy = "(a model that differs from the report's needs metadata; convert the checkpoint again)";

    it.each([
      [
        'combine_style',
        7,
        'FORMAT_INVALID',
        'm.cflow: combine_style: 7 is no combine style, known are 0 to 6',
      ],
      [
        'sliding_window',
        512,
        'FORMAT_INVALID',
        `m.cflow: header: sliding_window is 512, expected 0 ${remedy}`,
      ],
      [
        'global_head_dim',
        16,
        'FORMAT_INVALID',
        `m.cflow: header: global_head_dim is 16, expected 8 ${remedy}`,
      ],
      ['feature_flags', 128, 'FORMAT_INVALID', `m.cflow: header: feature_flags is 128, expected 0 ${remedy}`],
      [
        'metadata_offset',
        64,
        'FORMAT_INVALID',
        'm.cflow: metadata: at byte 64: no bytes at 64, expected offset 0',
      ],
    ] as const)('%s = %d', async (field, value, code, message) => {
      await fails(bare(field, value), code, message);
    });

    it.each([
      ['num_layers', 0],
      ['top_k', 9],
      ['num_kv_heads', 3],
      ['hidden_dim', 0],
      ['final_logit_softcap', Number.NaN],
      ['final_logit_softcap', -1],
    ])('%s = %d is no valid configuration', async (field, value) => {
      await fails(bare(field, value), 'CONFIG_INVALID', /^m\.cflow: not a valid model configuration: /);
    });

    it('65,535 layers in a small file', async () => {
      const message = /^m\.cflow: num_layers: 65535 layers need a table of 4194240 bytes, the file has \d+$/;
      await fails(bare('num_layers', 65_535), 'FORMAT_INVALID', message);
    });

    it('1,100 layers of 255 experts in a small file', async () => {
      const made = makeBareModel(CONFIG, 'q4_0', container);
      for (const [field, value] of [
        ['num_layers', 1_100],
        ['num_experts', 255],
      ] as const)
        poke(made.bytes, HEADER[container], 0, field, value);
      await fails(
        made.bytes,
        'LIMIT_EXCEEDED',
        /^m\.cflow: config\.layers: 283803 streams, the limit is 262144$/,
      );
    });
  });
});

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

describe('reading a damaged tile', () => {
  it('names the field and its place', async () => {
    const { offset, length, stream } = regionOf(SOUND.cflow.layout, 'embedding');
    const bytes = changed('cflow', (copy) => (copy[offset + 2] = 3));
    const own = bytes.subarray(offset, offset + length);
    expect(() => decodeStream(stream!, SOUND.cflow.layout.dtype, own, 'm.cflow', offset)).toThrow(
      expect.objectContaining({
        code: 'FORMAT_INVALID',
        message: `m.cflow: at byte ${offset + 2}: TileHeader.matrix_id is 3, expected 11`,
      }),
    );
  });

  it('is refused by its checksum where there is one', async () => {
    const { offset } = regionOf(SOUND.cflow.layout, 'embedding');
    const source = guardedSource(changed('cflow', (copy) => (copy[offset + 2] = 3)));
    await expect(readTensor(source, await openModel(source), 'embed_tokens.weight')).rejects.toMatchObject({
      code: 'VERIFY_FAILED',
      details: { field: 'embedding', offset },
    });
  });
});
