/** Settings of version 6, replaced in place: what survives each cut, and what is refused. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { type Metadata, memorySource, openModel, planSettings, verifyModel } from '@cflow/format';
import { draft, makeConfig, makeModel } from '@cflow/test-kit/models';
import { afterAll, describe, expect, it } from 'vitest';
import { setInFile } from '../src/set.js';
import { run } from './cli-fixture.js';

const directory = mkdtempSync(join(tmpdir(), 'cflow-set-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const metadata = {
  ...draft(makeConfig()),
  tokenizer: { tokenizerJson: '{}', chatTemplate: 'old', vocabSize: 7 },
  extensions: { licence: 'MIT' },
};
const MADE = await makeModel(makeConfig(), 'q4_0', 'cflow', { version: 6, metadata });

function fileOf(bytes: Uint8Array, name = 'model.cflow'): string {
  const path = join(directory, name);
  writeFileSync(path, bytes);
  return path;
}

async function metadataOf(bytes: Uint8Array): Promise<Metadata> {
  const source = memorySource(bytes);
  const file = await openModel(source);
  for await (const fault of verifyModel(source, file)) throw new Error(fault.problem);
  return file.metadata;
}

describe('--set', () => {
  it('replaces the template again and again; weights, tokenizer and extensions stay as they are', async () => {
    const path = fileOf(MADE.bytes);
    for (const template of ['new', 'x'.repeat(10_000), '{{ "é" }}']) {
      await setInFile(path, [`chat_template=${template}`]);
      const bytes = readFileSync(path);
      expect(bytes.length).toBe(MADE.bytes.length);
      const { tokenizer, extensions, checksums } = await metadataOf(bytes);
      expect(tokenizer).toEqual({ ...metadata.tokenizer, chatTemplate: template });
      expect(extensions).toEqual(metadata.extensions);
      expect(checksums).toEqual((await metadataOf(MADE.bytes)).checksums);
    }
  });

  it('takes texts from files, numbers, JSON, and nothing to remove', async () => {
    const path = fileOf(MADE.bytes);
    await setInFile(path, [`chat_template=@${fileOf(Buffer.from('from a file'), 'template.jinja')}`]);
    await setInFile(path, ['generation.temperature=0.7']);
    await setInFile(path, ['extensions.provenance={"by":["me"]}']);
    await setInFile(path, ['extensions.licence=']);
    expect(await metadataOf(readFileSync(path))).toMatchObject({
      tokenizer: { chatTemplate: 'from a file' },
      generation: { temperature: 0.7 },
      extensions: { provenance: { by: ['me'] } },
    });
    expect((await metadataOf(readFileSync(path))).extensions).not.toHaveProperty('licence');
  });

  it('applies all, in order, by one write; a dry run writes nothing', async () => {
    const path = fileOf(MADE.bytes);
    const all = [
      'generation.topK=7',
      'extensions.constructor=1',
      'extensions.licence=MIT',
      'generation.topK=9',
    ];
    await setInFile(path, all, { dryRun: true });
    expect(Buffer.compare(readFileSync(path), MADE.bytes)).toBe(0);
    await expect(setInFile(path, ['generation.topK=-1'], { dryRun: true })).rejects.toThrow('-1');
    await expect(setInFile(path, [...all, 'generation.topK=-1'])).rejects.toThrow('-1');
    expect(Buffer.compare(readFileSync(path), MADE.bytes)).toBe(0);
    await setInFile(path, all);
    const { generation, extensions } = await metadataOf(readFileSync(path));
    expect(generation).toEqual({ topK: 9 });
    expect({ ...extensions }).toEqual({ licence: 'MIT', constructor: 1 });
  });

  it('of the command line: every --set, a dry run, and no option that has no effect', async () => {
    const path = fileOf(MADE.bytes);
    const two = ['--set', 'generation.topK=7', path, '--set=generation.topP=0.5'];
    const dry = await run(...two, '--dry-run');
    expect(dry).toMatchObject({ code: 0, stdout: expect.stringContaining('would set generation.topK=7') });
    expect(dry.stdout).toContain('nothing was written');
    for (const idle of [
      '--dtype=q8_0',
      '--format-version=6',
      '--model=auto',
      '--threads=1',
      '--no-cache',
      '--verify',
    ]) {
      const name = idle.replace('--no-', '--').split('=')[0]!;
      const { code, stderr } = await run(...two, idle);
      expect([code, stderr]).toEqual([2, expect.stringContaining(`${name} does not apply beside --set`)]);
    }
    expect(Buffer.compare(readFileSync(path), MADE.bytes)).toBe(0);
    expect(await run(...two)).toMatchObject({ code: 0 });
    expect((await metadataOf(readFileSync(path))).generation).toEqual({ topK: 7, topP: 0.5 });
  });

  it('leaves the old settings or the new ones, wherever it is cut off', async () => {
    const [document, head] = await planSettings(
      memorySource(MADE.bytes),
      (settings) => ({ ...settings, chatTemplate: 'new' }),
      crc32,
    );
    expect(head.bytes.length).toBeLessThanOrEqual(512);
    const bytes = MADE.bytes.slice();
    for (let cut = 0; cut <= document.bytes.length; cut++) {
      bytes.set(document.bytes.subarray(0, cut), document.offset);
      expect((await metadataOf(bytes)).tokenizer!.chatTemplate).toBe('old');
    }
    bytes.set(head.bytes, head.offset);
    expect((await metadataOf(bytes)).tokenizer!.chatTemplate).toBe('new');
  });

  it.each([
    ['chat_template', 'USAGE', 'cannot set "chat_template"'],
    ['temperature=1', 'USAGE', 'cannot set "temperature=1"'],
    ['generation=1', 'USAGE', 'cannot set "generation=1"'],
    [`chat_template=${'x'.repeat(100_000)}`, 'LIMIT_EXCEEDED', 'bytes of settings, the slack has'],
    ['generation.temperature=abc', 'USAGE', '"abc" is not a number'],
    ['generation.temperature= ', 'USAGE', '" " is not a number'],
    ['generation.top_k=1', 'USAGE', 'did you mean generation.topK? names are temperature, topK, topP,'],
    ['generation.warmth=1', 'USAGE', 'generation has no warmth (names are temperature,'],
    ['generation.topP=2', 'USAGE', 'cannot set "generation.topP=2": Too big'],
    ['extensions.__proto__={"zz":1}', 'USAGE', 'a key called __proto__ is not stored'],
    ['extensions.a=[{"__proto__":1}]', 'USAGE', 'a key called __proto__ is not stored'],
    ['chat_template=@/does/not/exist', 'NOT_READABLE', '/does/not/exist'],
  ])('refuses %.30s and leaves the file alone', async (assignment, code, message) => {
    const path = fileOf(MADE.bytes);
    await expect(setInFile(path, [assignment])).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
    });
    expect(Buffer.compare(readFileSync(path), MADE.bytes)).toBe(0);
  });

  it('refuses files without tokenizer, version 5, and damaged files', async () => {
    const bare = await makeModel(makeConfig(), 'q4_0', 'cflow', { version: 6 });
    await expect(setInFile(fileOf(bare.bytes), ['chat_template=x'])).rejects.toMatchObject({ code: 'USAGE' });
    const five = await makeModel(makeConfig(), 'q4_0', 'cflow', {
      metadata: { ...metadata, extensions: undefined } as never,
    });
    await expect(setInFile(fileOf(five.bytes), ['chat_template=x'])).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringContaining('version 5 of the format has no room for changes'),
    });
    const damaged = MADE.bytes.slice();
    damaged[200]! ^= 1;
    await expect(setInFile(fileOf(damaged), ['chat_template=x'])).rejects.toMatchObject({
      code: 'VERIFY_FAILED',
    });
  });
});
