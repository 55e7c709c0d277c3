import { createHash } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { openModel, readTensor } from '@cflow/format';
import { directory } from '@cflow/test-kit/checkpoint';
import { describe, expect, it } from 'vitest';
import { listing, llamaFiles, llamaTensors, RAGGED, run } from './cli-fixture.js';

const sha256 = async (path: string) =>
  createHash('sha256')
    .update(await readFile(path))
    .digest('hex');

describe('dry run', () => {
  // Parameters by the report's formulas; megabytes as the report and the design give them.
  it.each([
    ['arch2_4', 114_408_960, 64],
    ['arch2_4_8k_4l', 8_339_939_328, 4_700],
    ['arch2_4_8k_16l', 30_889_500_672, 17_390],
  ])('%s: %d parameters, about %d MB, without a source', async (preset, parameters, megabytes) => {
    const { code, stdout, stderr } = await run('--model', preset, '--dry-run', '--json');
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const report = JSON.parse(stdout);
    expect(report).toMatchObject({ model: preset, parameters, dtype: 'q4_0', weightsPresent: false });
    // The rest of q4_0's 18 bytes for 32 weights is tile headers, padding and metadata.
    expect(Math.abs(report.fileBytes / 1e6 / megabytes - 1)).toBeLessThan(0.015);
    expect(report.fileBytes).toBeGreaterThan((parameters * 18) / 32);
    expect(report.fileBytes).toBeLessThan(((parameters * 18) / 32) * 1.01);
    const sum = Object.values<number>(report.bytesByKind).reduce((a, b) => a + b, 0);
    expect(sum).toBe(report.fileBytes);
  });

  it('of an option given twice: the last counts', async () => {
    const args = ['--model', 'arch1', '--dtype', 'f32', '--model', 'arch2_4', '--dtype', 'q4_0'];
    const { code, stdout } = await run(...args, '--dry-run', '--json');
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ model: 'arch2_4', dtype: 'q4_0' });
  });

  it('of a checkpoint says the size that the conversion then has, and writes nothing', async () => {
    const dir = await directory(llamaFiles());
    const before = await listing(dir);
    const dry = await run(dir, join(dir, 'a.vflow'), '--dry-run', '--json');
    expect(dry.code).toBe(0);
    expect(await listing(dir)).toEqual(before);
    expect((await run(dir, join(dir, 'a.vflow'))).code).toBe(0);
    // 2·131·40 + 40 + 2·(2·40 + 2·40·40 + 2·20·40 + 3·57·40)
    expect(JSON.parse(dry.stdout)).toMatchObject({
      parameters: 33_960,
      fileBytes: (await stat(join(dir, 'a.vflow'))).size,
    });
  });

  it('needs a source or a preset: exit 2', async () => {
    const { code, stderr } = await run('--dry-run');
    expect(code).toBe(2);
    expect(stderr).toContain('arch2_4_8k_16l');
  });
});

describe('conversion', () => {
  it.each(['cflow', 'vflow'])(
    'stores every weight of a ragged llama in .%s, exactly with f32',
    async (kind) => {
      const dir = await directory(llamaFiles());
      const output = join(dir, `m.${kind}`);
      const { code, stdout } = await run(dir, output, '--dtype', 'f32', '--verify', '--json');
      expect(code).toBe(0);
      expect(JSON.parse(stdout)).toMatchObject({ container: kind, dtype: 'f32', verified: true, output });
      const bytes = new Uint8Array(await readFile(output));
      const read = async (offset: number, length: number) => bytes.subarray(offset, offset + length);
      const source = { name: output, size: bytes.length, read };
      const model = await openModel(source);
      const stored = llamaTensors(RAGGED);
      for (const [ours, theirs] of [
        ['embed_tokens.weight', 'model.embed_tokens.weight'],
        ['lm_head.weight', 'lm_head.weight'],
        ['layers.1.attn_norm.weight', 'model.layers.1.input_layernorm.weight'],
        ['layers.0.attn.k_proj.weight', 'model.layers.0.self_attn.k_proj.weight'],
        ['layers.1.ffn.down_proj.weight', 'model.layers.1.mlp.down_proj.weight'],
        ['layers.0.ffn.up_proj.weight', 'model.layers.0.mlp.up_proj.weight'],
      ] as const) {
        expect(await readTensor(source, model, ours), ours).toEqual(
          Float32Array.from(stored[theirs]!.values),
        );
      }
    },
  );

  it('gives the same bytes with 1 and 2 threads and a second time, and says where they came from', async () => {
    const dir = await directory(llamaFiles());
    const sums = [];
    for (const [name, threads] of ['1', '2', '2'].entries()) {
      const output = join(dir, `${name}.cflow`);
      expect((await run(dir, output, '--threads', threads)).code).toBe(0);
      sums.push(await sha256(output));
    }
    expect(new Set(sums).size).toBe(1);
    const head = (await readFile(join(dir, '0.cflow'))).toString('latin1');
    expect(head).toContain(await sha256(join(dir, 'model.safetensors')));
    expect(head).not.toContain(dir);
  });

  it('lays a .cflow out as the .vflow that the checkpoint gives', async () => {
    const dir = await directory(llamaFiles());
    const at = (name: string) => join(dir, name);
    expect((await run(dir, at('a.cflow'))).code).toBe(0);
    expect((await run(dir, at('a.vflow'))).code).toBe(0);
    expect((await run(at('a.cflow'), at('b.vflow'))).code).toBe(0);
    expect(await sha256(at('b.vflow'))).toBe(await sha256(at('a.vflow')));
  });
});

describe('command line', () => {
  it.each([
    ['an unknown flag', ['--quick']],
    ['an unknown dtype', ['--dtype', 'q3']],
    ['an unknown preset', ['--model', 'arch9']],
    ['no threads', ['--threads', '0']],
    ['no output', []],
  ])('%s: exit 2, nothing on stdout', async (_, flags) => {
    const dir = await directory(llamaFiles());
    const output = flags.length ? [join(dir, 'a.cflow')] : [];
    const { code, stdout, stderr } = await run(dir, ...output, ...flags);
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
    expect(stderr).toMatch(/^cflow-convert: error: /);
    expect(await listing(dir)).toEqual(['config.json', 'model.safetensors']);
  });

  it('an output that is neither .cflow nor .vflow: exit 2', async () => {
    const dir = await directory(llamaFiles());
    expect((await run(dir, join(dir, 'a.gguf'))).code).toBe(2);
    expect((await run(dir, join(dir, 'a.safetensors'))).code).toBe(2);
    expect(await listing(dir)).toEqual(['config.json', 'model.safetensors']);
  });

  it.each([
    [['--dtype', 'q8_0'], 'dtype'],
    [['--no-scale-search'], 'scaleSearch'],
    [['--model', 'arch1'], 'model'],
    [['--allow-nonfinite', 'zero'], 'zeroNonfinite'],
  ])('%s cannot change a finished file: exit 2', async (flags, option) => {
    const dir = await directory(llamaFiles());
    const at = (name: string) => join(dir, name);
    expect((await run(dir, at('a.cflow'), '--dtype', 'f32')).code).toBe(0);
    const { code, stderr } = await run(at('a.cflow'), at('b.cflow'), ...flags);
    expect(code).toBe(2);
    expect(stderr).toContain(`${option} applies to a checkpoint`);
    expect(await listing(dir)).toEqual(['a.cflow', 'config.json', 'model.safetensors']);
  });

  it('an export cannot be verified, and does not say that it was: exit 2', async () => {
    const dir = await directory(llamaFiles());
    const at = (name: string) => join(dir, name);
    expect((await run(dir, at('a.cflow'))).code).toBe(0);
    expect((await run(at('a.cflow'), at('a.safetensors'), '--verify')).code).toBe(2);
    expect(await listing(dir)).toEqual(['a.cflow', 'config.json', 'model.safetensors']);
  });

  it('--help names every exit code, and where checkpoints come from', async () => {
    const { code, stdout } = await run('--help');
    for (const source of ['GGUF', 'hf:org/name']) expect(stdout).toContain(source);
    expect(code).toBe(0);
    expect(stdout.replace(/\s+/g, ' ')).toContain('10 The output exists');
  });
});
