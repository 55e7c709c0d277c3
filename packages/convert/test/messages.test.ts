/** What was meant, and the line to type: messages for what people get wrong. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CflowError, foreignFile } from '@cflow/format';
import { directory } from '@cflow/test-kit/checkpoint';
import { describe, expect, it } from 'vitest';
import { convert } from '../src/convert.js';
import { dryRun } from '../src/dry-run.js';
import { llamaFiles } from './cli-fixture.js';

const POINTER = `version https://git-lfs.github.com/spec/v1\noid sha256:${'0'.repeat(64)}\nsize 9\n`;
const PAGE = '<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>';

async function failure(work: Promise<unknown>): Promise<CflowError> {
  const error = await work.then(
    () => undefined,
    (reason) => reason,
  );
  expect(error).toBeInstanceOf(CflowError);
  return error;
}

describe('files that are not what their name says are named as what they are', () => {
  it.each([
    ['config.json', POINTER, 'a Git LFS pointer'],
    ['tokenizer.json', POINTER, 'a Git LFS pointer'],
    ['model.safetensors', POINTER, 'a Git LFS pointer'],
    ['model.safetensors', PAGE, 'an HTML page'],
    ['config.json', PAGE, 'an HTML page'],
  ])('%s: %#', async (name, content, what) => {
    const dir = await directory({ ...llamaFiles(), [name]: content });
    const { code, message } = await failure(dryRun({ source: dir }));
    expect([code, message.includes(name), message.includes(what)]).toEqual(['FORMAT_INVALID', true, true]);
  });

  it('a .gguf', async () => {
    const dir = await directory({});
    await writeFile(join(dir, 'm.gguf'), POINTER);
    expect((await failure(dryRun({ source: join(dir, 'm.gguf') }))).message).toContain('a Git LFS pointer');
  });

  it('a .cflow that is a GGUF, or safetensors', () => {
    const bytes = (text: string) => new TextEncoder().encode(text);
    expect(foreignFile(bytes('GGUF\x03\0\0\0'))?.remedy).toContain('cflow-convert');
    expect(foreignFile(bytes('\x10\0\0\0\0\0\0\0{"a":{"dtype"'))?.what).toBe('a safetensors file');
    expect(foreignFile(bytes('CFLOW\0\0\0'), 'cflow')).toBeUndefined();
    expect(foreignFile(bytes('{"model_type": "llama"}'), 'text')).toBeUndefined();
  });
});

describe('what was meant', () => {
  it('a repository without hf:', async () => {
    const { code, message } = await failure(convert({ source: 'Qwen/Qwen3-1.7B', output: '/tmp/out.cflow' }));
    expect(code).toBe('NOT_READABLE');
    expect(message).toContain('cflow-convert hf:Qwen/Qwen3-1.7B Qwen3-1.7B.cflow');
  });

  it('a safetensors file instead of its directory', async () => {
    const dir = await directory(llamaFiles());
    const source = join(dir, 'model.safetensors');
    const { code, message } = await failure(convert({ source, output: join(dir, 'o.cflow') }));
    expect(code).toBe('USAGE');
    expect(message).toContain(`cflow-convert ${dir} MODEL.cflow`);
  });

  it.each([
    ['an adapter alone', {}],
    ['an adapter beside a config.json', { 'config.json': llamaFiles()['config.json']! }],
  ])('%s', async (_name, files) => {
    const adapter = { base_model_name_or_path: 'acme/base', peft_type: 'LORA' };
    const dir = await directory({
      ...files,
      'adapter_config.json': adapter,
      'adapter_model.safetensors': 'x',
    });
    for (const work of [dryRun, convert]) {
      const { code, message } = await failure(work({ source: dir, output: join(dir, 'o.cflow') }));
      expect(code).toBe('UNSUPPORTED');
      expect(message).toMatch(/adapter_config\.json: a LoRA adapter, not a model \(merge it into acme\/base/);
    }
  });

  it('a model beside an adapter: a note', async () => {
    const dir = await directory({ ...llamaFiles(), 'adapter_config.json': {} });
    const { notes } = await dryRun({ source: dir });
    expect(notes).toContain('adapter_config.json: the adapter beside the model is not applied');
  });

  it("source and output in each other's place", async () => {
    const dir = await directory(llamaFiles());
    const out = join(dir, 'new.cflow');
    for (const swapped of [
      { source: out, output: dir },
      { source: out, output: 'hf:acme/tiny' },
    ]) {
      for (const work of [dryRun, convert]) {
        const { code, message } = await failure(work(swapped));
        expect(code).toBe('USAGE');
        expect(message).toContain(`cflow-convert ${swapped.output} ${out}`);
      }
    }
    // Neither is there, or both are: nothing to guess.
    const missing = await failure(convert({ source: out, output: join(dir, 'other.cflow') }));
    expect(missing.code).toBe('NOT_READABLE');
    await expect(convert({ source: dir, output: out, threads: 1 })).resolves.toMatchObject({ output: out });
  });
});
