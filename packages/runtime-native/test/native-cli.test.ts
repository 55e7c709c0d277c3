/** cflow-run with its engines, and the install script on machines that cannot compile; both as processes. */
import { execFile } from 'node:child_process';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { goldenFile, tokenizerMetadata } from './model-file.js';

const root = fileURLToPath(new URL('..', import.meta.url));
let directory: string;
let model: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-native-cli-'));
  model = join(directory, 'model.cflow');
  await writeFile(model, (await goldenFile('arch2_4', { dtype: 'q4_0' })).bytes);
});
afterAll(() => rm(directory, { recursive: true }));

interface Result {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

const node = (args: string[], env: NodeJS.ProcessEnv = {}) =>
  new Promise<Result>((resolve) => {
    const options = { env: { ...process.env, ...env } };
    execFile(process.execPath, args, options, (error, out, err) => {
      resolve({ code: error ? Number(error.code) : 0, out, err });
    });
  });

const run = (args: string[], env: NodeJS.ProcessEnv = {}) =>
  node(
    [
      join(root, 'bin/cflow-run.js'),
      model,
      '--ids',
      '5,6',
      '--max-tokens',
      '8',
      '--temperature',
      '0',
      ...args,
    ],
    env,
  );

describe('cflow-run', () => {
  it('runs natively unless told not to, and exactly so with f32', async () => {
    const [native, exact, reference] = await Promise.all([
      run(['--json']),
      run(['--json', '--arithmetic', 'f32', '--threads', '1', '--weights', 'resident']),
      run(['--json', '--engine', 'reference']),
    ]);
    expect([native.err, exact.err, reference.err]).toEqual(['', '', '']);
    const documents = [native, exact, reference].map(({ out }) => JSON.parse(out));
    expect(documents.map(({ engine }) => engine.name)).toEqual(['native', 'native', 'reference']);
    expect(documents[0].stats.native).toMatchObject({ arithmetic: 'q8', cache: 'f16', weights: 'resident' });
    expect(documents[0].stats.native.choice).toMatchObject({
      reason: expect.stringMatching(/^W \+ C \+ M = [\d.]+ MiB fit [\d.]+ [GM]i?B: everything in memory$/),
      budgetReason: expect.stringMatching(/^80 % of [\d.]+ [GM]i?B available$/),
    });
    expect(documents[1].stats.native).toMatchObject({
      arithmetic: 'f32',
      cache: 'f32',
      weights: 'resident',
      choice: { weights: 'resident', reason: 'as asked' },
      threads: 1,
      threadsReason: 'as asked',
    });
    expect(documents[1].ids).toEqual(documents[2].ids);
    // Phases of a small model are too short to share, unless the threads were asked for.
    const [chosen, asked] = documents.map(({ stats }) => stats.native);
    expect(chosen).toMatchObject({ shareShort: false, sharedPhases: 0 });
    expect(asked).toMatchObject({ shareShort: true });
    expect(documents[2].stats.native).toBeUndefined();
    const { tokenMsP50, tokenMsP99, firstTokenMs } = documents[0].stats;
    expect(firstTokenMs).toBeGreaterThan(0);
    expect(tokenMsP99).toBeGreaterThanOrEqual(tokenMsP50);
  });

  it('--profile says on stderr where the time went', async () => {
    const { code, out, err } = await run(['--profile', '--threads', '2']);
    expect([code, out.split('\n')]).toEqual([0, [expect.stringMatching(/^\d+(,\d+){7}$/), '']]);
    expect(err).toMatch(/^decode +[\d.]+ tokens\/s; .* \(p50\), .* \(p99\)$/m);
    expect(err).toMatch(/^engine +native, \w+, 2 threads \(as asked\), q8 activations, f16 KV cache$/m);
    expect(err).toMatch(/^weights +resident \(W \+ C \+ M = .* fit .*: everything in memory\)$/m);
    expect(err).toMatch(/^barriers +\d+ per token$/m);
    const byDefault = await run(['--profile']);
    if (!byDefault.err.includes(' 1 thread (')) {
      expect(byDefault.err).toMatch(
        /^barriers +(\d+) per token; \1 phases are too short to share: 1 thread$/m,
      );
    }
    expect(err).toMatch(/^matvec +\d+ +[\d.]+ ms +[\d.]+ % +[\d.]+$/m);
  });

  it('--profile with --perplexity says it of all texts together', async () => {
    const [text, tiny] = [join(directory, 'texts.txt'), join(directory, 'text-model.cflow')];
    await writeFile(text, 'AB\n<|endoftext|>\nABBA');
    const { tokenizerJson, vocabSize } = tokenizerMetadata([]);
    const tokenizer = {
      tokenizerJson: JSON.stringify({ ...JSON.parse(tokenizerJson), normalizer: null }),
      vocabSize,
    };
    await writeFile(tiny, (await goldenFile('arch2_4', { dtype: 'q4_0', tokenizer })).bytes);
    const args = [join(root, 'bin/cflow-run.js'), tiny, '--perplexity', text, '--profile', '--json'];
    const { code, out, err } = await node([...args, '--weights', 'mapped']);
    expect({ code, err: code ? err : '' }).toEqual({ code: 0, err: '' });
    const { predictedTokens, documents, engine, stats } = JSON.parse(out);
    expect([documents, stats.promptTokens, engine.name]).toEqual([2, predictedTokens, 'native']);
    expect(err).toMatch(new RegExp(`^prompt +${predictedTokens} tokens, [\\d.]+ tokens/s`, 'm'));
    expect(err).not.toMatch(/^decode/m);
    expect(err).toMatch(/^weights +mapped \(as asked\)$/m);
    expect(err).toMatch(/^matvec +\d+ +[\d.]+ ms/m);
  });

  it('a budget has one answer: an error names the smallest that works', async () => {
    const refused = await run(['--memory', '1MB']);
    const least = Number(/allow (\d+) MiB/.exec(refused.err)?.[1]);
    const less = await run(['--memory', `${least - 1}MiB`]);
    expect([less.code, less.err]).toEqual([refused.code, refused.err]);
    const smallest = await run(['--memory', `${least}MiB`, '--json']);
    expect([smallest.code, smallest.err]).toEqual([0, '']);
    expect(JSON.parse(smallest.out).stats.native.weights).toBe('direct');
  });

  it.each([
    [['--threads', '0'], {}, /--threads/],
    [['--threads', '5000'], {}, /1 to 1024/],
    [['--weights', 'light'], {}, /weights/],
    [['--engine', 'reference', '--threads', '2'], {}, /--threads.*native/],
    [['--engine', 'reference', '--weights', 'auto'], {}, /--weights.*native/],
    [['--engine', 'reference', '--arithmetic', 'f32'], {}, /--arithmetic.*native/],
    [['--engine', 'reference', '--cache', 'f32'], {}, /--cache.*native/],
    [['--engine', 'reference', '--profile'], {}, /--profile.*native/],
    [[], { CFLOW_ISA: 'abacus' }, /abacus.*scalar/],
  ])('%j %j is a usage error', async (args, env, message) => {
    const { code, out, err } = await run(args, env);
    expect([code, out]).toEqual([2, '']);
    expect(err).toMatch(/^cflow-run: error: [^\n]+\n$/);
    expect(err).toMatch(message);
  });
});

describe('the install script', () => {
  const install = (args: string[], env: NodeJS.ProcessEnv) =>
    node([join(root, 'install.mjs'), ...args], { BUILD: join(directory, 'build'), ...env });

  it.each([[[]], [['--build']]])('%j without make: one line, and no failure', async (args) => {
    const { code, err } = await install(args, { PATH: join(directory, 'nothing') });
    expect(code).toBe(0);
    expect(err).toMatch(/^cflow: native engine not built \(make not found\); the reference engine[^\n]*\n$/);
  });

  it('without a compiler: one line that names it', async () => {
    const { code, err } = await install([], { CXX: 'no-such-compiler' });
    expect(code).toBe(0);
    expect(err).toMatch(/^cflow: native engine not built \(no-such-compiler not found[^\n]*\n$/);
  });

  it('a compilation that fails: one line when installing, an error when building', async () => {
    const compiler = join(directory, 'broken-compiler');
    await writeFile(
      compiler,
      '#!/bin/sh\ncase $1 in -*version|-dumpmachine) exit 0;; esac\necho "x.cpp: error: no" >&2\nexit 1\n',
    );
    await chmod(compiler, 0o755);
    const installing = await install([], { CXX: compiler });
    expect(installing.code).toBe(0);
    expect(installing.err).toMatch(
      /^cflow: native engine not built \(compilation failed: x\.cpp: error: no\)[^\n]*\n$/,
    );
    const building = await install(['--build'], { CXX: compiler });
    expect(building.code).toBe(1);
    expect(building.err).toContain('x.cpp: error: no');
  });

  it('CFLOW_SKIP_BUILD=1 does nothing', async () => {
    expect(await install([], { CFLOW_SKIP_BUILD: '1', CXX: 'no-such-compiler' })).toEqual({
      code: 0,
      out: '',
      err: '',
    });
  });
});
