import { type FileHandle, mkdir, mkdtemp, open, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it, onTestFinished, vi } from 'vitest';
import { openSource } from '../src/hub/open.js';
import { llamaConfig, run, type Shape, start } from './cli-fixture.js';
import { llamaTensorShapes, pause } from './resume-fixture.js';

/** 20.6 billion parameters, 41.2 GB in BF16. */
const HUGE: Shape = {
  hidden: 8192,
  ffn: 22_016,
  vocab: 32_000,
  heads: 64,
  kvHeads: 8,
  headDim: 128,
  layers: 29,
};
const PARAMETERS =
  2 * 32_000 * 8192 + 29 * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 22_016 * 8192 + 2 * 8192) + 8192;
const SHARDS = 9;
/** What a conversion may hold: threads, a few stripes and blocks, and Node itself. */
const MEMORY_BYTES = 700e6;

let dir = '';
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-huge-'));
  await mkdir(join(dir, 'huge'));
  const entries = Object.entries(llamaTensorShapes(HUGE));
  const weight_map: Record<string, string> = {};
  for (let i = 0; i < SHARDS; i++) {
    const file = `model-0000${i + 1}-of-0000${SHARDS}.safetensors`;
    const own = entries.filter((_, index) => Math.floor((index * SHARDS) / entries.length) === i);
    for (const [name] of own) weight_map[name] = file;
    await writeSparse(join(dir, 'huge', file), own);
  }
  await writeFile(
    join(dir, 'huge', 'model.safetensors.index.json'),
    JSON.stringify({ metadata: {}, weight_map }),
  );
  await writeFile(join(dir, 'huge', 'config.json'), JSON.stringify(llamaConfig(HUGE)));
});
afterAll(() => rm(dir, { recursive: true }));

/** A header, and data that are a hole in the file. */
async function writeSparse(path: string, tensors: [string, number[]][]): Promise<void> {
  let end = 0;
  const rows = tensors.map(([name, shape]) => {
    const begin = end;
    end += 2 * shape.reduce((a, b) => a * b, 1);
    return [name, { dtype: 'BF16', shape, data_offsets: [begin, end] }];
  });
  const text = Buffer.from(JSON.stringify(Object.fromEntries(rows)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  const file = await open(path, 'w');
  await file.write(Buffer.concat([length, text]), 0, 8 + text.length, 0);
  await file.truncate(8 + text.length + end);
  await file.close();
}

/** Counts the bytes that files opened from here on are asked for. */
async function countReads(): Promise<() => number> {
  const any = await open(join(dir, 'huge', 'config.json'));
  const spy = vi.spyOn(Object.getPrototypeOf(any) as FileHandle, 'read');
  await any.close();
  onTestFinished(() => spy.mockRestore());
  return () => spy.mock.calls.reduce((sum, call) => sum + Number((call as unknown[])[2]), 0);
}

it('forty gigabytes: headers, configuration and every pair are checked, and nothing else is read', async () => {
  const source = join(dir, 'huge');
  const bytesRead = await countReads();
  const checkpoint = await openSource({ source, model: 'auto', cache: true, dryRun: true });
  await checkpoint.close();
  const headers = SHARDS * 1e4;
  expect(bytesRead()).toBeGreaterThan(SHARDS * 1e3);
  expect(bytesRead()).toBeLessThan(headers);
  const bytes = checkpoint.files.reduce((sum, file) => sum + file.bytes, 0);
  expect(bytes).toBeGreaterThan(40e9);
  const { code, stdout } = await run(source, '--dry-run', '--json');
  expect(code).toBe(0);
  expect(JSON.parse(stdout)).toMatchObject({ parameters: PARAMETERS, weightsPresent: true });
});

it('and its conversion starts within the memory bound', async () => {
  const output = join(dir, 'm.cflow');
  const { child, outcome } = start(join(dir, 'huge'), output, '--threads', '2');
  const partial = join(dir, '.m.cflow.partial');
  const written = async () => (await stat(partial).catch(() => undefined))?.size ?? 0;
  // The first layers tell: what they need, the others need too.
  while (child.exitCode === null && (await written()) < 60e6) await pause(20);
  const status = await memoryOf(child.pid!);
  child.kill('SIGINT');
  const { code, stderr } = await outcome;
  expect({ code, stderr }).toMatchObject({
    code: 130,
    stderr: expect.stringContaining('continue with --resume'),
  });
  expect(status).toBeLessThan(MEMORY_BYTES);
});

/** The most that a process held so far, in bytes; 0 on systems that do not tell. */
async function memoryOf(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  return 1024 * Number(/VmHWM:\s+(\d+) kB/.exec(text)?.[1] ?? 0);
}
