import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { directory, safetensors, TINY_CONFIG, tinyTensors } from '@cflow/test-kit/checkpoint';
import { describe, expect, it } from 'vitest';
import { openCheckpoint } from '../src/sources/checkpoint.js';

const tiny = (tensors = tinyTensors(), config: object | string = TINY_CONFIG) =>
  directory({ 'config.json': config, 'model.safetensors': safetensors(tensors) });

describe('openCheckpoint', () => {
  it('gives configuration, shapes and rows by canonical name', async () => {
    const dir = await tiny();
    const source = await openCheckpoint(dir);
    expect(source.name).toBe('tiny');
    expect(source.config.name).toBe('tiny');
    expect(source.tensor('layers.1.attn.q_proj.weight')).toEqual({ dtype: 'F32', shape: [8, 6] });
    expect([...(await source.rowsF32('layers.1.ffn.down_proj.weight', 2, 2))]).toEqual([
      10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
    ]);
    expect([...(await source.rowsF32('norm.weight', 0, 6))]).toEqual([0, 1, 2, 3, 4, 5]);
    expect(source.files.map(({ name, path }) => [name, path])).toEqual([
      ['model.safetensors', join(dir, 'model.safetensors')],
      ['config.json', join(dir, 'config.json')],
    ]);
    expect(source.tokenizer).toBeUndefined();
    expect(() => source.tensor('lm_head.weight')).toThrow(`${dir}: lm_head.weight: no tensor lm_head.weight`);
    await source.close();
  });

  it('accepts a config.json with bare Infinity, and shows line and column of what is wrong', async () => {
    const text = JSON.stringify(TINY_CONFIG).replace('{', '{"limit": [Infinity, -Infinity, NaN],\n');
    const source = await openCheckpoint(await tiny(tinyTensors(), text));
    expect(source.config.hiddenDim).toBe(6);
    await source.close();
    await expect(openCheckpoint(await tiny(tinyTensors(), '{"a": 1,\n "b": }'))).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining(
        'config.json: not valid JSON at line 2, column 7: expected a value, found "}"',
      ),
    });
  });

  it('lists everything that does not match in one error', async () => {
    const tensors = tinyTensors();
    delete tensors['model.layers.0.mlp.up_proj.weight'];
    tensors['model.layers.1.self_attn.q_proj.weight'] = { shape: [6, 6] };
    tensors['model.layers.1.mlp.up_proj.weight'] = { dtype: 'I8', size: 1, shape: [5, 6] };
    tensors['model.layers.2.input_layernorm.weight'] = { shape: [6] };
    tensors['model.layers.0.self_attn.rotary_emb.inv_freq'] = { shape: [2] };
    tensors['lm_head.weight'] = { shape: [7, 6] };
    const dir = await tiny(tensors);
    await expect(openCheckpoint(dir)).rejects.toMatchObject({
      code: 'TENSOR_MISMATCH',
      message:
        `${dir}: 4 tensors do not match the configuration (1 × I8): missing model.layers.0.mlp.up_proj.weight [5,6]; ` +
        'model.layers.1.self_attn.q_proj.weight is [6,6], not [8,6]; ' +
        'model.layers.1.mlp.up_proj.weight has the unsupported dtype I8; ' +
        'surplus model.layers.2.input_layernorm.weight [6] (do config.json and weights belong together?)',
    });
  });

  it('ignores a stored head only where embeddings are tied', async () => {
    const tensors = { ...tinyTensors(), 'lm_head.weight': { shape: [7, 6] } };
    await (await openCheckpoint(await tiny(tensors))).close();
    const untied = { ...TINY_CONFIG, tie_word_embeddings: false };
    await expect(openCheckpoint(await tiny(tinyTensors(), untied))).rejects.toThrow(
      'missing lm_head.weight [7,6]',
    );
    const source = await openCheckpoint(await tiny(tensors, untied));
    expect(source.tensor('lm_head.weight').shape).toEqual([7, 6]);
    await source.close();
  });

  it('spells out twenty mismatches and counts all', async () => {
    const dir = await tiny({ 'model.norm.weight': { shape: [6] } });
    const error: Error = await openCheckpoint(dir).then(
      () => expect.unreachable(),
      (e: Error) => e,
    );
    expect(error.message.startsWith(`${dir}: 19 tensors do not match`)).toBe(true);
    const many = await tiny({}, { ...TINY_CONFIG, num_hidden_layers: 100 });
    await expect(openCheckpoint(many)).rejects.toThrow(/: 902 tensors do not match.*; and 882 more \(/);
  });

  it('says UNSUPPORTED where dtypes are all that is wrong', async () => {
    const tensors = tinyTensors();
    tensors['model.norm.weight'] = { dtype: 'I8', size: 1, shape: [6] };
    await expect(openCheckpoint(await tiny(tensors))).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringContaining(
        '1 tensor does not match the configuration (1 × I8): model.norm.weight has the unsupported dtype I8 (weights must be F32, F16, BF16, F64, F8_E4M3, F8_E5M2)',
      ),
    });
  });

  it('reports the vocabulary of the tokenizer beside the rows of the embedding', async () => {
    const tokenizer = { model: { vocab: { a: 0, b: 1, c: 2 } }, added_tokens: [{ id: 4, content: '<eos>' }] };
    const text = JSON.stringify(tokenizer, null, 1);
    const dir = await tiny();
    await writeFile(join(dir, 'tokenizer.json'), text);
    await writeFile(join(dir, 'tokenizer_config.json'), '{"chat_template": "from config"}');
    const source = await openCheckpoint(dir);
    expect(source.tokenizer).toEqual({
      tokenizerJson: text,
      tokenizerConfigJson: '{"chat_template": "from config"}',
      chatTemplate: 'from config',
      vocabSize: 5,
    });
    expect(source.config.vocabSize).toBe(7);
    await source.close();
    await writeFile(join(dir, 'chat_template.jinja'), 'from file');
    await writeFile(join(dir, 'tokenizer.json'), '{"model": {"vocab": [["a", 0], ["b", -1.5]]}}');
    const unigram = await openCheckpoint(dir);
    expect(unigram.tokenizer).toMatchObject({ chatTemplate: 'from file', vocabSize: 2 });
    await unigram.close();
    await writeFile(join(dir, 'tokenizer.json'), '{}');
    await expect(openCheckpoint(dir)).rejects.toThrow('tokenizer.json: model.vocab: no vocabulary');
  });

  it('opens a directory without weights for a dry run only', async () => {
    const dir = await directory({ 'config.json': TINY_CONFIG });
    await expect(openCheckpoint(dir)).rejects.toMatchObject({
      code: 'NOT_READABLE',
      message: `${dir}: neither model.safetensors nor model.safetensors.index.json (the weights are missing)`,
    });
    const source = await openCheckpoint(dir, { dryRun: true });
    expect(source.hasWeights).toBe(false);
    expect(source.config.vocabSize).toBe(7);
    await expect(source.rowsF32('norm.weight', 0, 1)).rejects.toThrow('norm.weight: opened without weights');
    await writeFile(join(dir, 'pytorch_model.bin'), '');
    await expect(openCheckpoint(dir)).rejects.toThrow(
      'pytorch_model.bin is not read; save the model as safetensors',
    );
  });

  it('names what is missing or unknown', async () => {
    const dir = await directory({});
    await expect(openCheckpoint(dir)).rejects.toThrow(`${join(dir, 'config.json')}: missing`);
    await expect(openCheckpoint(join(dir, 'x'))).rejects.toThrow(`${join(dir, 'x')}: cannot open: ENOENT`);
    await expect(openCheckpoint(dir, { model: 'arch9' })).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringContaining('model: no model is called "arch9" (one of auto'),
    });
    await writeFile(join(dir, 'file'), '');
    await expect(openCheckpoint(join(dir, 'file'))).rejects.toThrow('not a directory');
  });
});

describe('what config.json leaves open', () => {
  const opened = async (config: object, tensors = tinyTensors(), files: Record<string, object> = {}) => {
    const all = { 'config.json': { ...TINY_CONFIG, ...config }, 'model.safetensors': safetensors(tensors) };
    const source = await openCheckpoint(await directory({ ...all, ...files }));
    await source.close();
    return source;
  };
  const HEAD = (value: number) => ({
    shape: [7, 6],
    values: Array.from({ length: 42 }, (_, i) => i * value),
  });

  it.each([
    { head_dim: 0 },
    { head_dim: null },
    { head_dim: undefined },
    { sliding_window: 0 },
    { num_experts: 0 },
    { vocab_size: -1 },
    { vocab_size: 0 },
    { vocab_size: null },
    { vocab_size: undefined },
  ])('%j is as if it were absent', async (config) => {
    const { config: read } = await opened(config);
    expect(read.vocabSize).toBe(7);
    expect(read.layers[0]!.attention.headDim).toBe(4);
    expect(read.layers[0]!.attention.slidingWindow).toBeUndefined();
  });

  it.each([
    ['an equal head is the embedding', 1, true],
    ['another head is a head, as in transformers', 2, false],
  ])('tied: %s', async (_name, factor, tied) => {
    const { config, notes } = await opened({}, { ...tinyTensors(), 'lm_head.weight': HEAD(factor) });
    expect(config.tiedEmbeddings).toBe(tied);
    expect(notes.join()).toContain(tied ? 'ignored 1 tensor: the LM head is the embedding' : 'both are kept');
  });

  it('tied: a head of another shape is refused, a lone head is the embedding', async () => {
    const wrong = { ...tinyTensors(), 'lm_head.weight': { shape: [8, 6] } };
    await expect(opened({}, wrong)).rejects.toThrow('lm_head.weight is [8,6], not [7,6]');
    const { 'model.embed_tokens.weight': embedding, ...rest } = tinyTensors();
    const { config, notes } = await opened({}, { ...rest, 'lm_head.weight': embedding! });
    expect(config.tiedEmbeddings).toBe(true);
    expect(notes.join()).toContain('only lm_head.weight is stored');
  });

  it('a missing head names the flag', async () => {
    await expect(opened({ tie_word_embeddings: undefined })).rejects.toThrow(
      'missing lm_head.weight [7,6]: if the embedding is the LM head too, set "tie_word_embeddings": true',
    );
  });

  it.each([
    [{ eos_token_id: [2, 7] }, {}, 'eos_token_id 7 of config.json'],
    [{ bos_token_id: 9, eos_token_id: 2 }, {}, 'bos_token_id 9 of config.json'],
    [
      {},
      { 'generation_config.json': { eos_token_id: [2, 128_009] } },
      'eos_token_id 128009 of generation_config.json',
    ],
    [{ model_type: 'smollm3' }, {}, 'eos_token_id 128001 of the defaults of smollm3'],
  ])('%j: ids outside the vocabulary are dropped and named', async (config, files, note) => {
    const { config: read, notes } = await opened(config, tinyTensors(), files as Record<string, object>);
    expect(notes).toContain(`${note} is outside the vocabulary of 7: dropped`);
    expect(read.eosTokenIds.every((id) => id < 7)).toBe(true);
  });
});

describe('shards', () => {
  /** TINY_CONFIG in two shards; `change` may falsify index or contents. */
  async function sharded(
    change: (map: Record<string, string>, shards: Record<string, ReturnType<typeof tinyTensors>>) => void,
  ) {
    const tensors = Object.entries(tinyTensors());
    const [a, b] = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'] as const;
    const shards = {
      [a]: Object.fromEntries(tensors.slice(0, 9)),
      [b]: Object.fromEntries(tensors.slice(9)),
    };
    const map = Object.fromEntries(tensors.map(([name], i) => [name, i < 9 ? a : b]));
    change(map, shards);
    const files = Object.fromEntries(
      Object.entries(shards).map(([name, content]) => [name, safetensors(content)]),
    );
    return directory({
      'config.json': TINY_CONFIG,
      'model.safetensors.index.json': { weight_map: map },
      ...files,
    });
  }

  it('reads each tensor from the shard that holds it', async () => {
    const source = await openCheckpoint(await sharded(() => {}));
    expect([...(await source.rowsF32('embed_tokens.weight', 6, 1))]).toEqual([36, 37, 38, 39, 40, 41]);
    expect([...(await source.rowsF32('layers.1.attn.k_proj.weight', 3, 1))]).toEqual([
      18, 19, 20, 21, 22, 23,
    ]);
    expect(source.files.map(({ name }) => name)).toEqual([
      'model-00001-of-00002.safetensors',
      'model-00002-of-00002.safetensors',
      'config.json',
      'model.safetensors.index.json',
    ]);
    await source.close();
  });

  it('lists every tensor that its shard lacks, before any work', async () => {
    const dir = await sharded((map, shards) => {
      delete shards['model-00002-of-00002.safetensors']!['model.layers.1.mlp.up_proj.weight'];
      map['model.norm.weight'] = 'model-00002-of-00002.safetensors';
    });
    await expect(openCheckpoint(dir)).rejects.toMatchObject({
      code: 'TENSOR_MISMATCH',
      message:
        `${join(dir, 'model.safetensors.index.json')}: index and shards disagree in 2 places: ` +
        'model.norm.weight is not in model-00002-of-00002.safetensors but in model-00001-of-00002.safetensors; ' +
        'model.layers.1.mlp.up_proj.weight is not in model-00002-of-00002.safetensors ' +
        '(the download is incomplete or mixed; download the checkpoint again)',
    });
  });

  it('lists missing shards, in a dry run too', async () => {
    const missing = await sharded((map) => {
      map['model.norm.weight'] = 'model-00003-of-00002.safetensors';
    });
    for (const dryRun of [false, true]) {
      await expect(openCheckpoint(missing, { dryRun })).rejects.toMatchObject({
        code: 'NOT_READABLE',
        message: expect.stringContaining(
          'disagree in 1 place: shard model-00003-of-00002.safetensors is missing',
        ),
      });
    }
  });

  it('says that all shards are missing, in a dry run too', async () => {
    const weight_map = { a: 'model-00001-of-00002.safetensors', b: 'model-00002-of-00002.safetensors' };
    const files = { 'config.json': TINY_CONFIG, 'model.safetensors.index.json': { weight_map } };
    const dir = await directory(files);
    for (const dryRun of [false, true]) {
      await expect(openCheckpoint(dir, { dryRun })).rejects.toMatchObject({
        code: 'NOT_READABLE',
        message: expect.stringMatching(/index\.json: none of its 2 shards is there \(download the weights; /),
      });
    }
  });

  it('reads a tensor that two shards hold from the one that the index names', async () => {
    for (const named of ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'] as const) {
      const doubled = await sharded((map, shards) => {
        map['model.norm.weight'] = named;
        shards['model-00001-of-00002.safetensors']!['model.norm.weight'] = {
          shape: [6],
          values: Array(6).fill(1),
        };
        shards['model-00002-of-00002.safetensors']!['model.norm.weight'] = {
          shape: [6],
          values: Array(6).fill(2),
        };
      });
      const source = await openCheckpoint(doubled);
      expect((await source.rowsF32('norm.weight', 0, 1))[0]).toBe(named.startsWith('model-00001') ? 1 : 2);
      expect(source.notes).toContainEqual(
        expect.stringMatching(/^model\.norm\.weight: in several shards; read from/),
      );
      await source.close();
    }
    const unnamed = await sharded((map, shards) => {
      delete map['model.norm.weight'];
      shards['model-00002-of-00002.safetensors']!['model.norm.weight'] = { shape: [6] };
    });
    await expect(openCheckpoint(unnamed)).rejects.toThrow(
      'model.norm.weight is in both model-00001-of-00002.safetensors and model-00002-of-00002.safetensors',
    );
  });

  it.each([
    ['zeros', safetensors({ 'model.norm.weight': { shape: [6] } })],
    ['empty', new Uint8Array(0)],
    ['an LFS pointer', new TextEncoder().encode('version https://git-lfs.github.com/spec/v1\n')],
  ])('the index decides, beside a stray model.safetensors: %s', async (_name, stray) => {
    const dir = await sharded(() => undefined);
    await writeFile(join(dir, 'model.safetensors'), stray);
    const source = await openCheckpoint(dir);
    expect([...(await source.rowsF32('norm.weight', 0, 3))]).toEqual([0, 1, 2]);
    expect(source.notes).toContain(
      'ignored model.safetensors: model.safetensors.index.json does not name it',
    );
    await source.close();
  });

  it('numbered shards without an index are read by their headers, if all are there', async () => {
    const dir = await sharded(() => undefined);
    await rm(join(dir, 'model.safetensors.index.json'));
    const source = await openCheckpoint(dir);
    expect([...(await source.rowsF32('norm.weight', 0, 3))]).toEqual([0, 1, 2]);
    await source.close();
    await rm(join(dir, 'model-00001-of-00002.safetensors'));
    await expect(openCheckpoint(dir)).rejects.toThrow('shards of 2 are there, and no index; missing are 1');
  });

  it.each(['model-00001-of-00001.safetensors', 'consolidated.safetensors'])(
    'reads %s alone',
    async (name) => {
      const dir = await directory({ 'config.json': TINY_CONFIG, [name]: safetensors(tinyTensors()) });
      const source = await openCheckpoint(dir);
      expect([...(await source.rowsF32('norm.weight', 0, 3))]).toEqual([0, 1, 2]);
      await source.close();
    },
  );

  it.each([
    '../a.safetensors',
    '/etc/a.safetensors',
    'a/b.safetensors',
    'a\\b.safetensors',
    '..',
    '',
    'a.bin',
    '.safetensors',
  ])('refuses the shard name %j', async (shard) => {
    const dir = await sharded((map) => {
      map['model.norm.weight'] = shard;
    });
    await expect(openCheckpoint(dir, { dryRun: true })).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining(
        `weight_map: ${JSON.stringify(shard)} is not the name of a shard beside the index`,
      ),
    });
  });

  it('refuses an index that maps to anything but names', async () => {
    const files = { 'config.json': TINY_CONFIG, 'model.safetensors.index.json': '{"weight_map": {"a": 1}}' };
    await expect(openCheckpoint(await directory(files))).rejects.toThrow(
      'weight_map: must be an object of strings: tensor → shard',
    );
  });
});
