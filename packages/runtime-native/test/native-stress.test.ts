/** The addon beside other copies of itself, signals, and workers that end: each in a process of its own. */
import { spawnSync } from 'node:child_process';
import { copyFile, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { goldenFile } from './model-file.js';

const ADDON = fileURLToPath(new URL('../build/native/cflow.node', import.meta.url));
const STRESS = fileURLToPath(new URL('native-stress.mjs', import.meta.url));

let directory: string;
let model: string;
let copy: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-stress-'));
  model = join(directory, 'model.cflow');
  copy = join(directory, 'copy.node');
  await writeFile(model, (await goldenFile('arch2_4')).bytes);
  await copyFile(ADDON, copy);
});
afterAll(() => rm(directory, { recursive: true }));

/** A process that runs `code`, in which `open`, `truncate`, `path`, `load` and `copy` are defined. What hangs is killed. */
function node(code: string) {
  const prelude = `
    import { truncateSync } from 'node:fs';
    import { createRequire } from 'node:module';
    import { setTimeout } from 'node:timers/promises';
    import { Worker } from 'node:worker_threads';
    import { buildPlan, openModel } from ${JSON.stringify(import.meta.resolve('@cflow/format'))};
    import { openFileSource } from ${JSON.stringify(import.meta.resolve('@cflow/format/node'))};
    import { lowerPlan } from ${JSON.stringify(new URL('../dist/native/lower.js', import.meta.url).href)};
    const [ADDON, COPY, path] = ${JSON.stringify([ADDON, copy, model])};
    const load = (name) => createRequire(import.meta.url)(name);
    const options = { weights: 'mapped', arithmetic: 'f32', cache: 'f32', threads: 2, maxBatch: 8, isa: '', profile: false,
      shareShort: true,
      recordRoutings: false };
    async function open(addon) {
      const source = await openFileSource(path);
      const file = await openModel(source);
      const { program } = lowerPlan(buildPlan(file.config, { transfers: 'none' }), file, { arithmetic: 'f32', delayAware: true });
      const engine = await addon.openEngine(source.fd, source.size, program, options);
      await source.close();
      const run = () => engine.createSession().run(Int32Array.of(1, 2), new Float32Array(program.vocabSize), false)
        .then(() => 'ok', ({ code }) => code);
      return { engine, run };
    }`;
  const run = spawnSync(process.execPath, ['--input-type=module', '-e', prelude + code], {
    cwd: fileURLToPath(new URL('.', import.meta.url)),
    encoding: 'utf8',
    timeout: 20_000,
    killSignal: 'SIGKILL',
  });
  return { signal: run.signal, output: run.stdout + run.stderr };
}

describe.runIf(process.platform === 'linux')('signals', () => {
  it('a sent SIGBUS ends the process, also when two copies of the addon handle it', () => {
    const { signal, output } = node(`
      const [first, second] = [load(ADDON), load(COPY)];
      const [a, b] = [await open(first), await open(second)];
      for (const { run } of [a, b, a, b]) if ((await run()) !== 'ok') throw new Error('a run failed');
      process.kill(process.pid, 'SIGBUS');
      await setTimeout(5000);
    `);
    expect({ signal, output }).toEqual({ signal: 'SIGBUS', output: '' });
  });

  it("handlers of JavaScript's hear of what is sent, and a shrinking file fails the call under them", () => {
    const { signal, output } = node(`
      const { run } = await open(load(ADDON));
      await run();
      setInterval(() => {}, 1000);
      const heard = new Promise((resolve) => process.once('SIGBUS', resolve));
      process.on('SIGBUS', () => {});
      await run();
      process.kill(process.pid, 'SIGBUS');
      await heard;
      truncateSync(path, 4096);
      console.log(await run());
      process.exit();
    `);
    expect({ signal, output }).toEqual({ signal: null, output: 'NOT_READABLE\n' });
  });

  it('a handler that JavaScript installs during a batch does not keep a page fault going', async () => {
    await writeFile(model, (await goldenFile('arch2_4', { dtype: 'q4_0' }, { contextLength: 4096 })).bytes);
    const { signal, output } = node(`
      const { Model } = await import(${JSON.stringify(new URL('../dist/index.js', import.meta.url).href)});
      const slow = { isa: 'scalar', threads: 1, maxBatch: 4096 };
      const model = await Model.open(path, { engine: 'native', weights: 'mapped', ...slow });
      const session = model.createSession();
      let ended = false;
      // A single batch, of seconds.
      const run = session.prefill(Array.from({ length: 1000 }, (_, i) => i % 60)).catch(({ code }) => code);
      run.then(() => (ended = true));
      await setTimeout(100);
      process.on('SIGBUS', () => {});
      truncateSync(path, 4096);
      if (ended) throw new Error('the batch was too short');
      console.log(await run);
      process.exit();
    `);
    expect({ signal, output }).toEqual({ signal: null, output: 'NOT_READABLE\n' });
  });

  it('a worker that alone loaded the addon leaves no handler in unmapped code', () => {
    const { signal, output } = node(`
      const worker = new Worker(\`require(\${JSON.stringify(ADDON)}).availableMemory()\`, { eval: true, execArgv: [] });
      await new Promise((resolve) => worker.on('exit', resolve));
      const { readFileSync } = await import('node:fs');
      console.log(readFileSync('/proc/self/maps', 'utf8').includes('cflow.node'));
    `);
    expect({ signal, output }).toEqual({ signal: null, output: 'true\n' });
  });
});

it('open, run, cancel, detach, close and drop, in workers that are terminated', async () => {
  await writeFile(model, (await goldenFile('arch2_4')).bytes);
  const { status, stdout, stderr, signal } = spawnSync(process.execPath, [STRESS, ADDON, model, '8', copy], {
    encoding: 'utf8',
    timeout: 60_000,
    killSignal: 'SIGKILL',
  });
  expect({ status, signal, stdout, stderr }).toEqual({
    status: 0,
    signal: null,
    stdout: 'stress: 8 operations\n',
    stderr: '',
  });
});
