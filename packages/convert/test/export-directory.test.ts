/** .cflow → a checkpoint directory, which converts back to the same streams; and dry runs of what a .cflow is written as. */
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { openModel, parseModelConfig } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { directory } from '@cflow/test-kit/checkpoint';
import { describe, expect, it } from 'vitest';
import { convert, dryRun } from '../src/index.js';
import { run as command } from './cli-fixture.js';
import { beside, checksumsOf, MODELS, makeCflow, ours, run, saved } from './gguf-fixture.js';

const GOLDEN = fileURLToPath(new URL('../../runtime-native/test/golden', import.meta.url));
const TOKENIZER = { model: { type: 'BPE', vocab: { a: 0, b: 1 }, merges: [] }, added_tokens: [] };

async function metadataOf(path: string) {
  const source = await openFileSource(path);
  try {
    return (await openModel(source)).metadata;
  } finally {
    await source.close();
  }
}

const json = async (path: string) => JSON.parse(await readFile(path, 'utf8'));

describe('export to a checkpoint directory', () => {
  it.each(Object.keys(MODELS))('%s comes back with the same streams and configuration', async (name) => {
    const cflow = await makeCflow(MODELS[name]!, 'f32');
    await run(cflow, beside(cflow, 'out'));
    await run(beside(cflow, 'out'), beside(cflow, 'b.cflow'), { dtype: 'f32' });
    expect(await checksumsOf(beside(cflow, 'b.cflow'))).toEqual(await checksumsOf(cflow));
    expect((await metadataOf(beside(cflow, 'b.cflow'))).config).toEqual((await metadataOf(cflow)).config);
  });

  it.each(['arch1', 'arch2_4', 'arch4', 'arch5'])('%s of the report, too', async (arch) => {
    const dir = await directory({});
    const [a, b] = [`${dir}/a.vflow`, `${dir}/b.vflow`];
    await run(`${GOLDEN}/${arch}`, a, { dtype: 'f32' });
    await run(a, `${dir}/v1.5/`);
    await run(`${dir}/v1.5`, b, { dtype: 'f32' });
    expect(await checksumsOf(b)).toEqual(await checksumsOf(a));
    const { model_type, ...config } = await json(`${dir}/v1.5/config.json`);
    expect(model_type).toBe('cflow');
    expect(parseModelConfig(config)).toEqual((await metadataOf(a)).config);
  });

  it('has the numbers that quantized weights mean', async () => {
    const cflow = await makeCflow(MODELS.llama!, 'q4_0');
    await run(cflow, beside(cflow, 'out'));
    await run(beside(cflow, 'out'), beside(cflow, 'b.cflow'), { dtype: 'f32' });
    const name = 'layers.1.ffn.up_proj.weight';
    expect(await ours(beside(cflow, 'b.cflow'), name)).toEqual(await ours(cflow, name));
  });

  it('keeps tokenizer, template and special tokens in the files that they came from', async () => {
    const source = await makeCflow(MODELS.llama!, 'f32', TOKENIZER);
    const from = beside(source, '.');
    await writeFile(`${from}/tokenizer_config.json`, '{"bos_token": "a"}');
    await writeFile(`${from}/chat_template.jinja`, '{{ bos_token }}');
    const cflow = beside(source, 'a.cflow');
    await run(from, cflow, { dtype: 'f32' });
    const out = beside(source, 'out');
    const { fileBytes, container } = await run(cflow, out);
    const names = (await readdir(out)).sort();
    expect(names).toEqual([
      'chat_template.jinja',
      'config.json',
      'generation_config.json',
      'model.safetensors',
      'tokenizer.json',
      'tokenizer_config.json',
    ]);
    const sizes = await Promise.all(names.map(async (name) => (await stat(`${out}/${name}`)).size));
    expect([container, fileBytes]).toEqual(['safetensors', sizes.reduce((a, b) => a + b)]);
    for (const name of ['tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja']) {
      expect(await readFile(`${out}/${name}`, 'utf8')).toBe(await readFile(`${from}/${name}`, 'utf8'));
    }
    expect(await json(`${out}/generation_config.json`)).toEqual({ bos_token_id: 1, eos_token_id: [2] });
    await run(out, beside(source, 'b.cflow'), { dtype: 'f32' });
    const back = await metadataOf(beside(source, 'b.cflow'));
    expect(back.tokenizer).toEqual((await metadataOf(cflow)).tokenizer);
  });

  it('takes an empty directory, and no other: not even with overwrite', async () => {
    const cflow = await makeCflow(MODELS.llama!, 'q8_0');
    const out = beside(cflow, 'out');
    await mkdir(out);
    await run(cflow, out);
    const before = await readFile(`${out}/model.safetensors`);
    const again = run(cflow, out, { overwrite: true });
    await expect(again).rejects.toMatchObject({ code: 'OUTPUT_EXISTS', details: { file: out } });
    expect(await readFile(`${out}/model.safetensors`)).toEqual(before);
    await writeFile(beside(cflow, 'taken'), 'x');
    await expect(run(cflow, beside(cflow, 'taken'))).rejects.toThrowError(/taken/);
    expect(await readFile(beside(cflow, 'taken'), 'utf8')).toBe('x');
  });

  it('leaves nothing of an interrupted export, a damaged source or options that say nothing here', async () => {
    const cflow = await makeCflow(MODELS.llama!, 'q8_0');
    const bytes = await readFile(cflow);
    bytes[bytes.length - 5]! ^= 1;
    const damaged = await saved(bytes, 'model.cflow');
    await expect(run(damaged, beside(damaged, 'out'))).rejects.toMatchObject({ code: 'VERIFY_FAILED' });
    expect(await readdir(beside(damaged, '.'))).toEqual(['model.cflow']);
    const before = (await readdir(beside(cflow, '.'))).sort();
    const usage = { code: 'USAGE' };
    const aborted = run(cflow, beside(cflow, 'out'), { signal: AbortSignal.abort() });
    await expect(aborted).rejects.toMatchObject({ code: 'INTERRUPTED' });
    await expect(run(cflow, beside(cflow, 'out'), { verify: true })).rejects.toMatchObject(usage);
    await expect(run(cflow, beside(cflow, 'out'), { dtype: 'f16' })).rejects.toMatchObject(usage);
    await expect(run(beside(cflow, '.'), beside(cflow, 'out'))).rejects.toMatchObject(usage);
    await expect(run(cflow, beside(cflow, 'no/out'))).rejects.toMatchObject({ code: 'WRITE_FAILED' });
    expect((await readdir(beside(cflow, '.'))).sort()).toEqual(before);
  });
});

describe('dry run of a .cflow', () => {
  const sizeOf = async (path: string) => (await stat(path)).size;

  it.each(['a.gguf', 'a.vflow', 'a.safetensors', 'a'])(
    'says the size of %s, and writes nothing',
    async (name) => {
      const cflow = await makeCflow(MODELS.olmoe!, 'q4_0');
      const output = beside(cflow, name);
      const before = (await readdir(beside(cflow, '.'))).sort();
      const { bytesByKind, ...report } = await dryRun({ source: cflow, output });
      expect((await readdir(beside(cflow, '.'))).sort()).toEqual(before);
      const done = await convert({ source: cflow, output, threads: 1 });
      const { model, container, dtype, parameters, fileBytes, notes } = done;
      expect(report).toMatchObject({ model, container, dtype, parameters, fileBytes, notes });
      expect(Object.values(bytesByKind).reduce((a, b) => a + b)).toBe(fileBytes);
      if (name !== 'a') expect(fileBytes).toBe(await sizeOf(output));
    },
  );

  it('of GGUF, by the command: what is said about it, as text and as JSON', async () => {
    const cflow = await makeCflow(MODELS.mistral!, 'q8_0');
    const { code, stdout, stderr } = await command(cflow, beside(cflow, 'a.gguf'), '--dry-run');
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toMatch(/parameters as q8_0 \.gguf: /);
    expect(stdout).toMatch(/^note: .*the context is 48 tokens instead of 128/m);
    const report = JSON.parse((await command(cflow, beside(cflow, 'a.gguf'), '--dry-run', '--json')).stdout);
    await run(cflow, beside(cflow, 'a.gguf'));
    expect(report).toMatchObject({ container: 'gguf', fileBytes: await sizeOf(beside(cflow, 'a.gguf')) });
  });

  it('refuses what the conversion would refuse', async () => {
    const cflow = await makeCflow(MODELS.llama!, 'q8_0');
    const refused = (output: string, more: object = {}) =>
      dryRun({ source: cflow, output: beside(cflow, output), ...more });
    await expect(refused('a.gguf', { dtype: 'f32' })).rejects.toMatchObject({ code: 'USAGE' });
    await expect(refused('a.vflow', { dtype: 'f32' })).rejects.toMatchObject({ code: 'USAGE' });
    await expect(refused('a', { verify: true })).rejects.toMatchObject({ code: 'USAGE' });
    const dir = await directory({});
    await run(`${GOLDEN}/arch2_4`, `${dir}/a.cflow`);
    const delayed = dryRun({ source: `${dir}/a.cflow`, output: `${dir}/a.gguf` });
    await expect(delayed).rejects.toMatchObject({ code: 'UNSUPPORTED' });
    const checkpoint = dryRun({ source: `${GOLDEN}/arch1`, output: `${dir}/a.gguf` });
    await expect(checkpoint).rejects.toMatchObject({ code: 'USAGE' });
  });
});
