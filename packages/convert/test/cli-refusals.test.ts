import { chmod, link, readFile, stat, symlink, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { directory, safetensors } from '@cflow/test-kit/checkpoint';
import { describe, expect, it } from 'vitest';
import { listing, llamaConfig, llamaFiles, llamaTensors, RAGGED, run, start } from './cli-fixture.js';

const INPUTS = ['config.json', 'model.safetensors'];

describe('the source stays what it is', () => {
  // llama.cpp#12753: the source was destroyed because the output was a link to it.
  it.each([
    ['a hard link to the weights', 'model.safetensors', link],
    ['a symbolic link to the weights', 'model.safetensors', symlink],
    ['a hard link to the configuration', 'config.json', link],
  ])('%s as output: exit 10, even with --overwrite', async (_, input, make) => {
    const dir = await directory(llamaFiles());
    const before = await readFile(join(dir, input));
    await make(join(dir, input), join(dir, 'out.cflow'));
    const { code, stderr } = await run(dir, join(dir, 'out.cflow'), '--overwrite');
    expect(code).toBe(10);
    expect(stderr).toContain(`the output is the input ${join(dir, input)}`);
    expect(await listing(dir)).toEqual([...INPUTS, 'out.cflow']);
    expect(await readFile(join(dir, input))).toEqual(before);
  });

  it('another spelling of a .cflow as its own output: exit 10', async () => {
    const dir = await directory(llamaFiles());
    expect((await run(dir, join(dir, 'm.cflow'))).code).toBe(0);
    const before = await readFile(join(dir, 'm.cflow'));
    await symlink(dir, join(dir, 'again'));
    const { code } = await run(join(dir, 'm.cflow'), `${dir}/again/./m.cflow`, '--overwrite');
    expect(code).toBe(10);
    expect(await readFile(join(dir, 'm.cflow'))).toEqual(before);
    expect(await listing(dir)).toEqual(['again', ...INPUTS.slice(0, 1), 'm.cflow', INPUTS[1]]);
  });

  // huggingface_hub#2797: reading failed in a read-only cache beside somebody else's lock file.
  it('reads from a read-only directory with a foreign lock file and leaves no trace there', async () => {
    const files = { ...llamaFiles(), 'model.safetensors.lock': 'held by another process' };
    const dir = await directory(files);
    const target = await directory({}, 'out');
    for (const name of Object.keys(files)) await chmod(join(dir, name), 0o444);
    await chmod(dir, 0o555);
    const before = (await stat(dir)).mtimeMs;
    try {
      expect((await run(dir, join(target, 'm.cflow'))).code).toBe(0);
      expect((await stat(dir)).mtimeMs).toBe(before);
    } finally {
      await chmod(dir, 0o755);
    }
  });
});

describe('places that cannot be written', () => {
  it('an existing output: exit 10, kept; replaced with --overwrite', async () => {
    const dir = await directory({ ...llamaFiles(), 'm.cflow': 'mine' });
    const output = join(dir, 'm.cflow');
    expect(await run(dir, output)).toMatchObject({ code: 10, stdout: '' });
    expect(await readFile(output, 'utf8')).toBe('mine');
    expect((await run(dir, output, '--overwrite')).code).toBe(0);
    expect((await readFile(output)).length).toBeGreaterThan(4);
    expect(await listing(dir)).toEqual(['config.json', 'm.cflow', 'model.safetensors']);
  });

  it('a name that is too long: exit 11, with its length', async () => {
    const dir = await directory(llamaFiles());
    const { code, stderr } = await run(dir, join(dir, `${'é'.repeat(150)}.cflow`));
    expect([code, stderr]).toEqual([
      11,
      expect.stringContaining('ENAMETOOLONG: the name has 306 bytes, the limit is 255'),
    ]);
  });

  it.each(['-1', '0', '501'])('--max-header %s: exit 2, with the number typed', async (typed) => {
    const { code, stderr } = await run('a', 'b.cflow', '--max-header', typed);
    expect([code, stderr]).toEqual([2, expect.stringContaining(`--max-header is ${typed}, expected`)]);
  });

  it('a directory as output: exit 10', async () => {
    const dir = await directory(llamaFiles(), 'm.cflow');
    expect((await run(dir, dir, '--overwrite')).code).toBe(10);
  });

  it('below a file, in a directory that is not there, on a disk without space: exit 11', async () => {
    const dir = await directory(llamaFiles());
    for (const place of [join(dir, 'config.json'), join(dir, 'absent'), '/proc']) {
      const { code, stderr } = await run(dir, join(place, 'm.cflow'));
      expect({ place, code }).toEqual({ place, code: 11 });
      expect(stderr).toContain(join(place, 'm.cflow'));
    }
    expect(await listing(dir)).toEqual(INPUTS);
  });
});

describe('weights that are not numbers', () => {
  const damaged = (name: string, index: number, value: number) =>
    llamaFiles(RAGGED, (tensors) => {
      tensors[name]!.values[index] = value;
    });

  it.each([
    // Row 3 of 40 columns, column 5; the row offset of a later stripe: row 130 lies in the second.
    [
      'model.layers.0.mlp.up_proj.weight',
      125,
      Number.NaN,
      'model.safetensors: model.layers.0.mlp.up_proj.weight: weight [3, 5] is NaN',
    ],
    ['lm_head.weight', 5207, Number.NEGATIVE_INFINITY, 'lm_head.weight: weight [130, 7] is -Infinity'],
    ['model.norm.weight', 9, Number.POSITIVE_INFINITY, 'model.norm.weight: weight [9] is Infinity'],
  ])('%s[%d] = %d: exit 9, named; zero on demand', async (name, index, value, message) => {
    const dir = await directory(damaged(name, index, value));
    const { code, stderr } = await run(dir, join(dir, 'm.cflow'));
    expect(code).toBe(9);
    expect(stderr).toContain(message);
    expect(await listing(dir)).toEqual(INPUTS);
    expect((await run(dir, join(dir, 'm.cflow'), '--allow-nonfinite', 'zero', '--verify')).code).toBe(0);
    const head = (await readFile(join(dir, 'm.cflow'))).toString('latin1');
    expect(head).toContain('"allowNonfinite":"zero"');
  });
});

describe('damaged checkpoints', () => {
  it('a truncated file: exit 4', async () => {
    const dir = await directory(llamaFiles());
    const path = join(dir, 'model.safetensors');
    await truncate(path, (await stat(path)).size - 1);
    const { code, stderr } = await run(dir, join(dir, 'm.cflow'));
    expect(code).toBe(4);
    expect(stderr).toContain(path);
    expect(await listing(dir)).toEqual(INPUTS);
  });

  it('an index that promises what its shard lacks: named, nothing written', async () => {
    const tensors = llamaTensors(RAGGED);
    const weight_map = Object.fromEntries(Object.keys(tensors).map((name) => [name, 'a.safetensors']));
    const { 'lm_head.weight': _, ...rest } = tensors;
    const dir = await directory({
      'config.json': llamaConfig(RAGGED),
      'a.safetensors': safetensors(rest),
      'model.safetensors.index.json': { metadata: {}, weight_map },
    });
    const { code, stderr } = await run(dir, join(dir, 'm.cflow'));
    expect(code).toBe(7);
    expect(stderr).toContain('lm_head.weight');
    expect(await listing(dir)).toEqual(['a.safetensors', 'config.json', 'model.safetensors.index.json']);
  });

  it('no such source: exit 3; a file that is no model: exit 4', async () => {
    const dir = await directory({ 'x.cflow': 'not a model at all' });
    expect((await run(join(dir, 'absent'), join(dir, 'm.cflow'))).code).toBe(3);
    expect((await run(join(dir, 'x.cflow'), join(dir, 'm.vflow'))).code).toBe(4);
    expect(await listing(dir)).toEqual(['x.cflow']);
  });
});

describe('interruption', () => {
  it.each(['SIGINT', 'SIGTERM'] as const)('%s in the middle: exit 130, nothing left', async (signal) => {
    const dir = await directory(llamaFiles({ ...RAGGED, hidden: 320, ffn: 2100, vocab: 3000 }));
    const out = await directory({}, 'out');
    const { child, outcome } = start(dir, join(out, 'm.cflow'), '--threads', '1');
    let seen: string[] = [];
    while (!seen.length && child.exitCode === null) seen = await listing(out);
    expect(seen[0]).toMatch(/^\.m\.cflow\.(journal|partial)$/);
    child.kill(signal);
    const { code, stdout, stderr } = await outcome;
    expect({ code, stdout }).toEqual({ code: 130, stdout: '' });
    expect(stderr).toContain('interrupted');
    expect(await listing(out)).toEqual([]);
  });
});

it('refuses a model file that was changed since: exit 13, nothing written', async () => {
  const dir = await directory(llamaFiles());
  const path = join(dir, 'm.cflow');
  expect((await run(dir, path, '--dtype', 'f32')).code).toBe(0);
  const bytes = await readFile(path);
  const at = bytes.length - 5000;
  bytes[at] = bytes[at]! ^ 1;
  await writeFile(path, bytes);
  const { code } = await run(path, join(dir, 'b.vflow'));
  expect(code).toBe(13);
  expect(await listing(dir)).toEqual(['config.json', 'm.cflow', 'model.safetensors']);
});
