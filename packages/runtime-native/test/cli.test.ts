import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openFileSource } from '@cflow/format/node';
import { captured } from '@cflow/test-kit/captured';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { main } from '../src/cli.js';
import { goldenFile, tokenizerMetadata } from './model-file.js';

let directory: string;
let model: string;
let withTokenizer: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-run-'));
  model = join(directory, 'model.cflow');
  withTokenizer = join(directory, 'text.vflow');
  await writeFile(model, (await goldenFile('arch5')).bytes);
  const tokenizer = { ...tokenizerMetadata(), vocabSize: 97 };
  await writeFile(withTokenizer, (await goldenFile('arch4', { tokenizer, container: 'vflow' })).bytes);
});

afterAll(() => rm(directory, { recursive: true }));

const run = (...argv: string[]) => captured(main, argv);

describe('cflow-run', () => {
  it('--json gives prompt and generated ids in one document', async () => {
    const { code, out, err } = await run(
      model,
      '--ids',
      '1',
      '--max-tokens',
      '20',
      '--temperature',
      '0',
      '--json',
    );
    expect([code, err]).toEqual([0, '']);
    const document = JSON.parse(out);
    expect(document).toMatchObject({ promptIds: [1], text: '', finish: 'length' });
    expect(document.ids).toHaveLength(21);
    expect(document.stats).toMatchObject({ promptTokens: 1, generatedTokens: 20 });
  });

  it('without a tokenizer prints ids', async () => {
    const { out } = await run(model, '--ids', '1,2', '--max-tokens', '3', '--temperature', '0');
    expect(out).toMatch(/^\d+,\d+,\d+\n$/);
  });

  it('repeats with a seed, and reports the one it drew', async () => {
    const args = [withTokenizer, '--ids', '5', '--max-tokens', '12', '--temperature', '2', '--json'];
    const first = JSON.parse((await run(...args)).out);
    const again = JSON.parse((await run(...args, '--seed', String(first.seed))).out);
    expect(again.ids).toEqual(first.ids);
  });

  it('streams text', async () => {
    const json = JSON.parse((await run(withTokenizer, '--ids', '1', '--seed', '1', '--json')).out);
    const { out } = await run(withTokenizer, '--ids', '1', '--seed', '1');
    expect(out).toBe(`${json.text}\n`);
    expect(json.ids).toHaveLength(1 + 64);
    expect(json.finish).toBe('context');
  });

  it('--help documents the exit codes', async () => {
    const { code, out } = await run('--help');
    expect(code).toBe(0);
    expect(out).toContain('--perplexity');
    expect(out.replace(/\s+/g, ' ')).toContain('130 The user interrupted');
  });

  it.each([
    [[]],
    [['MODEL']],
    [['MODEL', '--ids', '1', '--prompt', 'x']],
    [['MODEL', '--ids', '1,,2']],
    [['MODEL', '--ids', '97']],
    [['MODEL', '--ids', '1', '--max-tokens', '0']],
    [['MODEL', '--ids', '1', '--max-tokens', 'many']],
    [['MODEL', '--ids', '1', '--temperature', '-1']],
    [['MODEL', '--ids', '1', '--temperature', 'hot']],
    [['MODEL', '--ids', '1', '--engine', 'steam']],
    [['MODEL', '--ids', '1', '--colour']],
    [['MODEL', 'extra', '--ids', '1']],
    [['MODEL', '--prompt', 'needs a tokenizer']],
  ])('%j is a usage error: one line, exit 2', async (argv) => {
    const { code, out, err } = await run(...argv.map((arg) => (arg === 'MODEL' ? model : arg)));
    expect([code, out]).toEqual([2, '']);
    expect(err).toMatch(/^cflow-run: error: [^\n]+\n$/);
  });

  it.each([
    ['missing', 'no-such-file', 3, /ENOENT/],
    ['a directory', '.', 3, /directory/],
    ['not a model', 'junk', 4, /magic/i],
  ])('%s', async (_name, file, exit, message) => {
    await writeFile(join(directory, 'junk'), 'x'.repeat(500));
    const { code, err } = await run(join(directory, file), '--ids', '1');
    expect(code).toBe(exit);
    expect(err).toMatch(message);
  });

  it('a context that is too short', async () => {
    expect((await run(model, '--ids', '1', '--max-tokens', '65')).code).toBe(12);
  });

  it('SIGINT ends with 130', async () => {
    const running = run(model, '--ids', '1', '--max-tokens', '60');
    setImmediate(() => process.emit('SIGINT'));
    expect((await running).code).toBe(130);
  });

  it('--perplexity of a missing file', async () => {
    expect((await run(withTokenizer, '--perplexity', join(directory, 'none'))).code).toBe(3);
  });
});

describe('openFileSource', () => {
  it('reads ranges and refuses to invent bytes', async () => {
    const path = join(directory, 'bytes');
    await writeFile(path, Uint8Array.of(1, 2, 3, 4));
    const source = await openFileSource(path);
    expect(source.size).toBe(4);
    expect([...(await source.read(1, 2))]).toEqual([2, 3]);
    await expect(source.read(2, 3)).rejects.toMatchObject({ code: 'NOT_READABLE' });
    await source.close();
    await expect(source.read(0, 1)).rejects.toMatchObject({ code: 'NOT_READABLE' });
  });
});
