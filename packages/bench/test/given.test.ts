/** What commands are given, and how they say that it will not do: an error of its own, before anything is measured. */
import { execFileSync } from 'node:child_process';
import { copyFile, link, mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openFileSource } from '@cflow/format/node';
import { captured } from '@cflow/test-kit/captured';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { main } from '../src/cli.js';
import { requireBenchAddon } from '../src/runner/addon.js';
import { makeFolder } from '../src/runner/files.js';
import { answered } from '../src/runner/native.js';
import { metric, readResult, writeResult } from '../src/runner/result.js';
import { synthesize } from '../src/synth/checkpoint.js';
import { synthesizeModel } from '../src/synth/model.js';
import { resultWith } from './results.js';

let dir: string;
const at = (name: string) => join(dir, name);

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-given-test-'));
  const model = { geometry: 'arch2_4', layers: 1, dtype: 'q4_0', seed: 1 } as const;
  await synthesizeModel({ target: at('m.cflow'), format: 'cflow', ...model });
  const checkpoint = { geometry: 'llama-tiny', bytes: 1e6, shards: 1, dtype: 'bf16', seed: 1 } as const;
  await synthesize({ directory: at('checkpoint'), ...checkpoint });
  await writeResult(at('a.json'), resultWith([metric('x: y', 's', 'lower', [1, 2])]));
  await writeFile(at('texts'), 'a text');
  execFileSync('mkfifo', [at('fifo')]);
  await mkdir(at('bad'));
  await writeFile(at('bad/bad.json'), '{');
  await mkdir(at('pictures'));
});
afterAll(() => rm(dir, { recursive: true }));

/** Words of a command line; `@name` is a file of the folder. */
const run = (line: string) =>
  captured(
    main,
    line.split(' ').map((word) => word.replace(/^@/, `${dir}/`)),
  );

describe('a command line', { timeout: 20_000 }, () => {
  it.each([
    ['report @a.json --svg /proc/x', 11, '/proc/x'],
    ['report @a.json --png /proc/x', 11, '/proc/x'],
    ['scorecard --only critical-path --output /proc/x/y', 11, '/proc/x'],
    ['scorecard --only critical-path --output @a.json', 11, 'a.json'],
    ['storage @m.cflow --directory /nonexist', 11, '/nonexist'],
    ['convert @checkpoint --directory /nonexist', 11, '/nonexist'],
    ['storage @m.cflow --io-block 1GiB --io-depth 256', 14, '274877906944 bytes, limit'],
    ['l1d --isa x', 2, '--isa x'],
    ['l1d --l1d 1/1', 2, '--l1d is 1/1'],
    ['l1d --l1d 99999999999M/1', 2, '--l1d'],
    ['synth @s.cflow --format cflow --seed NaN', 2, '--seed is NaN'],
    ['synth @s --seed 0.5', 2, '--seed is 0.5'],
    ['residual @m.cflow --seed NaN', 2, '--seed is NaN'],
    ['scorecard --only critical-path --results @nope', 3, 'nope'],
    ['scorecard --only critical-path --results @a.json', 3, 'a.json'],
    ['scorecard --only critical-path --results @bad', 4, 'bad.json'],
    ['decode @m.cflow --prefill 16 --gguf @bad', 3, 'bad'],
    ['compare @fifo @a.json', 3, 'fifo'],
    ['compare /dev/zero @a.json', 3, '/dev/zero'],
    ['report @fifo --output @x.html', 3, 'fifo'],
    ['cache @fifo', 3, 'fifo'],
    ['quality @checkpoint @fifo', 3, 'fifo'],
    ['quality @checkpoint /dev/zero', 3, '/dev/zero'],
    ['residual @m.cflow --texts @fifo', 3, 'fifo'],
    ['cache --record @m.cflow --texts @fifo', 3, 'fifo'],
    ['structure @m.cflow --save @nope/s.json', 11, 'nope'],
    ['structure @m.cflow --save /dev/null', 10, '/dev/null'],
    ['synth @s.cflow --format cflow --save @s.json', 2, 'save'],
    ['compare @a.json @a.json --save @s.json', 2, 'save'],
    ['report @a.json --save @s.json', 2, 'save'],
  ])('%s: exit %i', async (line, code, said) => {
    const { err, ...ended } = await run(line);
    expect([ended.code, err]).toEqual([code, expect.stringContaining(said)]);
    expect(err).toMatch(/^cflow-bench: error: [^\n]*\n$/);
    expect(err).not.toMatch(/undefined|internal/);
  });
});

describe('an output that is an input is left alone by', () => {
  it.each([
    ['decode @m.cflow --save @m.cflow', 'm.cflow'],
    ['decode @m.cflow --save @linked', 'm.cflow'],
    ['report @a.json --output @a.json', 'a.json'],
    ['cache --record @m.cflow --output @m.cflow', 'm.cflow'],
    ['cache --record @m.cflow --texts @texts --save @texts', 'texts'],
    ['quality @checkpoint @texts --save @checkpoint/config.json', 'checkpoint/config.json'],
    ['structure @m.cflow --save @m.cflow', 'm.cflow'],
    ['scorecard --only structure --model @m.cflow --save @m.cflow', 'm.cflow'],
  ])('%s', async (line, name) => {
    if (line.includes('@linked')) await link(at(name), at('linked'));
    const before = await readFile(at(name));
    const { code, err } = await run(line);
    expect([code, err]).toEqual([10, expect.stringContaining('the output is the input')]);
    expect((await readFile(at(name))).equals(before)).toBe(true);
  });

  it('a folder of charts', async () => {
    const { command, metrics } = await readResult(at('a.json'));
    const [{ unit, better }] = metrics as [(typeof metrics)[0]];
    const name = `pictures/${command}-${unit}-${better}.svg`;
    await copyFile(at('a.json'), at(name));
    const { code } = await run(`report @${name} --svg @pictures`);
    expect(code).toBe(10);
    expect(await readFile(at(name))).toEqual(await readFile(at('a.json')));
  });
});

it('folders are made one in another', async () => {
  await makeFolder(at('one/two/three'));
  await makeFolder(at('one/two/three'));
  expect((await stat(at('one/two/three'))).isDirectory()).toBe(true);
  await expect(makeFolder(at('texts/two'))).rejects.toMatchObject({ code: 'WRITE_FAILED' });
});

it('regions beyond the end of a file are an error of the file, whatever is still being read', async () => {
  const { readRegions } = requireBenchAddon();
  const source = await openFileSource(at('m.cflow'));
  const regions = Float64Array.of(0, source.size + 2 ** 20, 0, source.size);
  const how = { block: 4096, depth: 64, backend: 'auto', mode: 'auto', prefetch: true } as const;
  try {
    for (let i = 0; i < 20; i++)
      await expect(answered(readRegions(source.fd!, regions, how), 'm.cflow')).rejects.toMatchObject({
        code: 'NOT_READABLE',
        message: expect.stringContaining('m.cflow'),
      });
  } finally {
    await source.close();
  }
});
