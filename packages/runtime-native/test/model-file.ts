/** Complete model files made in memory, for tests. */
import {
  type ByteSource,
  type Container,
  type Dtype,
  type Layout,
  type Metadata,
  type ModelConfig,
  ModelWriter,
  memorySource,
  modelTensors,
  parseModelConfig,
  quantizeStripe,
  type Region,
  streamPieces,
  stripeId,
} from '@cflow/format';
import { makeTensors } from '@cflow/test-kit/models';
import { goldenJson, goldenPath, loadSafetensors, type Tensors } from './helpers.js';

export interface FileOptions {
  readonly dtype?: Dtype;
  readonly container?: Container;
  readonly tokenizer?: Metadata['tokenizer'];
}

/** Bytes of a model file that holds `tensors`. */
export async function modelBytes(
  config: ModelConfig,
  tensors: Tensors,
  { dtype = 'f32', container = 'cflow', tokenizer }: FileOptions = {},
): Promise<Uint8Array> {
  const metadata = {
    config,
    ...(tokenizer ? { tokenizer } : {}),
    source: { name: config.name, files: [] },
    converter: { version: '0', options: {} },
  };
  let bytes = new Uint8Array(0);
  const sink = {
    name: 'memory',
    write: async (offset: number, piece: Uint8Array) => {
      bytes.set(piece, offset);
    },
  };
  const writer = new ModelWriter(sink, { dtype, container, metadata });
  bytes = new Uint8Array(writer.layout.fileBytes);
  for (const region of writer.layout.regions) {
    if (region.stream) await writer.writeStream(region, streamBytesOf(region, writer.layout, tensors));
    else await writer.writeFixed(region);
  }
  await writer.finish();
  return bytes;
}

function* streamBytesOf(
  { stream }: Region,
  { dtype, version }: Layout,
  tensors: Tensors,
): Generator<Uint8Array> {
  for (const piece of streamPieces(stream!, dtype)) {
    const { values, shape } = tensors.get(piece.tensor.name)!;
    if (piece.kind === 'plain') {
      yield new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
      continue;
    }
    const { rowOffset, rows } = piece.stripe;
    const cols = shape[1]!;
    const part = values.slice(rowOffset * cols, (rowOffset + rows) * cols);
    const id = stripeId(piece.stripe, version);
    yield quantizeStripe(dtype, part, rows, cols, id, { scaleSearch: false });
  }
}

/** Random weights, made smaller so that they stay finite. */
export function randomTensors(config: ModelConfig, smaller: (x: number, name: string) => number): Tensors {
  const values = makeTensors(config);
  const tensors: Tensors = new Map();
  for (const { name, shape } of modelTensors(config)) {
    tensors.set(name, { shape: [...shape], values: values.get(name)!.map((x) => smaller(x, name)) });
  }
  return tensors;
}

/** Norms around one. */
export const quarter = (x: number, name: string) => (name.includes('norm') ? 1 + x / 4 : x / 4);

/** A golden model as a file. `change` edits its configuration. */
export async function goldenFile(
  arch: string,
  options: FileOptions = {},
  change: Partial<ModelConfig> = {},
): Promise<{ bytes: Uint8Array; config: ModelConfig }> {
  const { model_type: _, ...json } = goldenJson(arch, 'config.json') as Record<string, unknown>;
  const config = parseModelConfig({ ...json, ...change });
  const tensors = loadSafetensors(goldenPath(arch, 'model.safetensors'));
  return { bytes: await modelBytes(config, tensors, options), config };
}

/** A source that records the ranges that are read. */
export function countingSource(
  bytes: Uint8Array,
): ByteSource & { reads: { offset: number; length: number }[] } {
  const inner = memorySource(bytes);
  const reads: { offset: number; length: number }[] = [];
  const read = async (offset: number, length: number) => {
    reads.push({ offset, length });
    return inner.read(offset, length);
  };
  return { name: inner.name, size: inner.size, reads, read };
}

/** A byte-fallback tokenizer: <s>, </s>, bytes 3 to 258, then a few pieces; spaces are ▁, one is put in front. */
export function tokenizerMetadata(
  pieces: string[] = ['▁', 'a', 'b', 'ab', '▁ab'],
): NonNullable<Metadata['tokenizer']> {
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, '0')}>`);
  const all = ['<unk>', '<s>', '</s>', ...bytes, ...pieces];
  const special = (content: string, id: number) => ({
    id,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  });
  const tokenizerJson = JSON.stringify({
    version: '1.0',
    added_tokens: ['<unk>', '<s>', '</s>'].map(special),
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: '▁' },
        { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
      ],
    },
    pre_tokenizer: null,
    post_processor: {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
      pair: [],
      special_tokens: { '<s>': { id: '<s>', ids: [1], tokens: ['<s>'] } },
    },
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: '<unk>',
      fuse_unk: true,
      byte_fallback: true,
      vocab: Object.fromEntries(all.map((token, id) => [token, id])),
      merges: ['a b', '▁ ab'],
    },
  });
  return { tokenizerJson, vocabSize: all.length };
}
