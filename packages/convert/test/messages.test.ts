/** What was meant, and the line to type: messages for what people get wrong. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CflowError, foreignFile } from '@cflow/format';
import { refuseHubName, usageError } from '@cflow/format/node';
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

  it('a repository where a file is expected', () => {
    expect(() => refuseHubName('hf:acme/tiny@main')).toThrow('cflow-convert hf:acme/tiny@main tiny.cflow');
    expect(() => refuseHubName('model.cflow')).not.toThrow();
  });

  it.each([
    ['Unknown argument: promt', 'did you mean --prompt?'],
    ['Unknown arguments: max-token, maxToken', 'did you mean --max-tokens?'],
    ['Unknown argument: xyzzy', 'see cflow-run --help'],
  ])('%s: %s', (problem, remedy) => {
    expect(usageError('cflow-run', problem, ['prompt', 'max-tokens', 'top-k']).message).toContain(remedy);
  });
});
