/** The native engine when something goes wrong: bad input, shrinking files, aborts, closing, threads that end. */
import { mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { buildPlan, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { Model, type OpenModelOptions } from '../src/model.js';
import { type Addon, loadAddon, type NativeEngineOptions } from '../src/native/addon.js';
import { lowerPlan } from '../src/native/lower.js';
import type { NativeProgram } from '../src/native/program.js';
import type { Session } from '../src/session.js';
import { goldenPath, loadSafetensors } from './helpers.js';
import { countingSource, goldenFile, modelBytes } from './model-file.js';
import { modelOpener } from './opened.js';
import { LONG, SLOWLY, slowModel } from './slow-model.js';

const addon = loadAddon() as Addon;
const OPTIONS: NativeEngineOptions = {
  weights: 'mapped',
  arithmetic: 'f32',
  cache: 'f32',
  threads: 2,
  maxBatch: 8,
  isa: '',
  profile: false,
  shareShort: true,
  recordRoutings: false,
};

let directory: string;
let small: string;
let slow: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-faults-'));
  small = await write('small.cflow', (await goldenFile('arch2_4')).bytes);
  slow = await write('slow.cflow', await slowModel());
});
afterAll(() => rm(directory, { recursive: true }));

const open = modelOpener({ engine: 'native', threads: 2 });

async function write(name: string, bytes: Uint8Array): Promise<string> {
  const path = join(directory, name);
  await writeFile(path, bytes);
  return path;
}

/** Until the engine of a session has read weights: it computes. */
const computing = (session: Session) =>
  vi.waitUntil(() => session.stats().native!.bytesRead > 0, { timeout: 60_000, interval: 1 });

describe('bad input', () => {
  it.each([[[-1]], [[97]], [[1.5]], [[]]])('ids %j are refused, and the session lives on', async (ids) => {
    const session = (await open(small)).createSession();
    await expect(session.prefill(ids)).rejects.toMatchObject({ code: 'USAGE' });
    await session.prefill([1]);
    expect(session.position).toBe(1);
  });

  it('a context that is full', async () => {
    const { bytes } = await goldenFile('arch5', {}, { contextLength: 8 });
    const session = (await open(await write('short.cflow', bytes))).createSession();
    await expect(session.prefill(Array(9).fill(1))).rejects.toMatchObject({ code: 'LIMIT_EXCEEDED' });
    await session.prefill(Array(8).fill(1));
    await expect(session.decode(1)).rejects.toMatchObject({ code: 'LIMIT_EXCEEDED' });
  });

  it.each(['norm.weight', 'layers.1.router.weight'])('NaN in %s ends in a typed error', async (name) => {
    const tensors = loadSafetensors(goldenPath('arch2_4', 'model.safetensors'));
    tensors.get(name)!.values.fill(Number.NaN);
    const { config } = await goldenFile('arch2_4');
    const session = (await open(await write('nan.cflow', await modelBytes(config, tensors)))).createSession();
    const next = session.generate({ ids: [1] }).next();
    await expect(next).rejects.toMatchObject({ code: 'NONFINITE_WEIGHT' });
  });

  it('an unknown CFLOW_ISA names those there are; a known one runs', async () => {
    vi.stubEnv('CFLOW_ISA', 'quantum');
    await expect(open(small)).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringMatching(/quantum.*scalar/),
      details: { field: 'CFLOW_ISA' },
    });
    vi.stubEnv('CFLOW_ISA', 'scalar');
    const session = (await open(small)).createSession();
    expect(session.stats().native?.isa).toBe('scalar');
    vi.unstubAllEnvs();
  });

  it.each([[{ threads: 0 }], [{ threads: 1025 }], [{ threads: 1.5 }], [{ maxBatch: 0 }]])(
    '%j is refused',
    async (options) => {
      await expect(open(small, options)).rejects.toMatchObject({ code: 'USAGE' });
    },
  );

  it('a model that is no file needs the reference engine, which serves by default', async () => {
    const { bytes } = await goldenFile('arch5');
    const native = Model.open(countingSource(bytes), { engine: 'native' });
    await expect(native).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringMatching(/reference/),
    });
    const model = await Model.open(countingSource(bytes));
    expect([model.engineName, model.fallback]).toEqual(['reference', 'the model is not a file']);
    const file = await Model.open(small);
    expect([file.engineName, file.fallback]).toEqual(['native', undefined]);
    await file.close();
  });
});

describe('programs that contradict themselves', () => {
  const step = (program: NativeProgram, op: string) =>
    program.steps.find((candidate) => candidate.op === op)!;

  it.each<[string, (program: NativeProgram) => object]>([
    ['a buffer that is not there', (p) => ({ steps: withStep(p, 1, { ...p.steps[1]!, out: 999 }) })],
    [
      'a step that is not there',
      (p) => ({ phases: [...p.phases, { parallel: [9999], serial: [], transfers: [] }] }),
    ],
    ['a step twice', (p) => ({ phases: [...p.phases, { parallel: [0], serial: [], transfers: [] }] })],
    ['a step in no phase', (p) => ({ phases: p.phases.slice(0, -1) })],
    ['an unknown step', (p) => ({ steps: withStep(p, 0, { op: 'dance' }) })],
    ['no steps', () => ({ steps: undefined })],
    ['a negative offset', (p) => ({ steps: withStep(p, 0, badEmbed(p, -5)) })],
    ['an offset beyond the file', (p) => ({ steps: withStep(p, 0, badEmbed(p, 2 ** 40)) })],
    ['a fraction of a layer', (p) => ({ buffers: p.buffers.map((length) => length + 0.5) })],
    ['a head beyond the phases', (p) => ({ headPhase: p.phases.length })],
    ['an unknown dtype', () => ({ dtype: 4 })],
    ['a buffer that is too short', (p) => ({ buffers: p.buffers.map((n, i) => (i === p.output ? n : 1)) })],
    ['a copy beyond its buffer', (p) => ({ steps: withStep(p, 1, badCopy(p)) })],
    ['an output that is not there', (p) => ({ output: p.buffers.length })],
  ])('%s', async (_name, change) => {
    const { fd, size, program, close } = await lowered();
    const bad = { ...program, ...change(program) } as NativeProgram;
    const open = async () => addon.openEngine(fd, size, bad, OPTIONS);
    try {
      await expect(open()).rejects.toMatchObject({ code: 'INTERNAL' });
    } finally {
      await close();
    }
  });

  function withStep(program: NativeProgram, index: number, step: object): object[] {
    return program.steps.map((own, i) => (i === index ? step : own));
  }

  function badCopy(program: NativeProgram): object {
    const { out } = step(program, 'embed') as { out: number };
    return { op: 'copy', input: out, out, at: 1 };
  }

  function badEmbed(program: NativeProgram, offset: number): object {
    const embed = step(program, 'embed') as NativeProgram['steps'][number] & { op: 'embed' };
    return { ...embed, matrix: { ...embed.matrix, stripes: embed.matrix.stripes.map(() => offset) } };
  }
});

async function lowered(path = small) {
  const source = await openFileSource(path);
  const file = await openModel(source);
  const options = { arithmetic: 'f32', delayAware: true } as const;
  const { program } = lowerPlan(buildPlan(file.config, { transfers: 'none' }), file, options);
  return { fd: source.fd!, size: source.size, program, close: () => source.close() };
}

describe('the handles', () => {
  it('refuse nonsense and use after close', async () => {
    const { fd, size, program, close } = await lowered();
    const engine = await addon.openEngine(fd, size, program, OPTIONS);
    await close();
    const session = engine.createSession();
    const logits = new Float32Array(program.vocabSize);
    expect(() => session.run(Int32Array.of(-1), logits, false)).toThrowError(/token id -1/);
    expect(() => session.run(Int32Array.of(1), logits.subarray(1), false)).toThrowError(/too short/);
    const first = session.run(Int32Array.of(1), logits, false);
    expect(() => session.run(Int32Array.of(1), logits, false)).toThrowError(/busy/);
    await first;
    expect(session.cacheBytes()).toBeGreaterThan(0);
    const idle = engine.createSession();
    await idle.close();
    await idle.close();
    expect(() => idle.run(Int32Array.of(1), logits, false)).toThrowError(/closed/);
    await engine.close();
    await engine.close();
    expect(() => session.run(Int32Array.of(1), logits, false)).toThrowError(
      expect.objectContaining({ code: 'USAGE' }),
    );
    expect(() => engine.createSession()).toThrowError(expect.objectContaining({ code: 'USAGE' }));
    expect(() => engine.stats()).toThrowError(expect.objectContaining({ code: 'USAGE' }));
  });

  it('an array that was detached while the job ran', async () => {
    const { fd, size, program, close } = await lowered(slow);
    const engine = await addon.openEngine(fd, size, program, OPTIONS);
    const logits = new Float32Array(program.vocabSize);
    const run = engine.createSession().run(Int32Array.from(LONG.slice(0, 50)), logits, false);
    structuredClone(logits, { transfer: [logits.buffer] });
    await expect(run).rejects.toMatchObject({ code: 'USAGE' });
    await engine.close();
    await close();
  });
});

describe('misuse', () => {
  it('two generations at once on one session', async () => {
    const session = (await open(small)).createSession();
    const first = session.generate({ ids: [1], maxTokens: 3 });
    await first.next();
    await expect(session.generate({ ids: [1] }).next()).rejects.toMatchObject({ code: 'USAGE' });
    await first.return();
    await session.decode(1);
  });

  it('use after close', async () => {
    const model = await open(small);
    const session = model.createSession();
    await session.prefill([1]);
    await model.close();
    await model.close();
    await expect(session.decode(1)).rejects.toMatchObject({ code: 'USAGE' });
    expect(() => model.createSession()).toThrowError(/closed/);
  });
});

describe('a file that shrinks', () => {
  it('fails the call, not the process', async () => {
    const path = await write('shrinking.cflow', (await goldenFile('arch2_4')).bytes);
    const model = await open(path, { weights: 'mapped' });
    await truncate(path, 4096);
    const session = model.createSession();
    await expect(session.prefill([1, 2, 3])).rejects.toMatchObject({ code: 'NOT_READABLE' });
    // The next model is not affected.
    await (await open(small)).createSession().prefill([1]);
  });

  it('does not matter to resident weights', async () => {
    const path = await write('resident.cflow', (await goldenFile('arch2_4')).bytes);
    const model = await open(path, { weights: 'resident' });
    await truncate(path, 4096);
    await model.createSession().prefill([1, 2, 3]);
  });
});

describe('interruption', () => {
  it('an abort in the middle of a prefill', async () => {
    const model = await open(slow, SLOWLY);
    const session = model.createSession();
    const abort = new AbortController();
    const run = session.prefill(LONG, { signal: abort.signal });
    void computing(session).then(() => abort.abort());
    await expect(run).rejects.toMatchObject({ code: 'INTERRUPTED', exitCode: 130 });
    // Half a prompt is in the caches: this session is over, others are not.
    await expect(session.prefill([1])).rejects.toMatchObject({ code: 'USAGE' });
    await model.createSession().prefill([1]);
  });

  it('an abort of a job that waits for another ends it, and not the other', async () => {
    const model = await open(slow, { maxBatch: 8, isa: 'scalar', threads: 1 });
    const [first, second] = [model.createSession(), model.createSession()];
    const running = first.prefill(LONG.slice(0, 100));
    const abort = new AbortController();
    const waiting = second.prefill(LONG, { signal: abort.signal });
    abort.abort();
    // Far from the seconds that 3,000 tokens take: it ends at its first barrier.
    await expect(waiting).rejects.toMatchObject({ code: 'INTERRUPTED' });
    await running;
    expect([first.position, second.position]).toEqual([100, 0]);
  });

  it('an abort that comes after the last token was computed is too late, and does no harm', async () => {
    const model = await open(small, { arithmetic: 'f32' });
    const [plain, session] = [model.createSession(), model.createSession()];
    await plain.prefill([1, 2, 3]);
    const abort = new AbortController();
    await session.prefill([1, 2], { signal: abort.signal, onLogits: () => abort.abort() });
    await session.decode(3);
    expect(session.logits()).toEqual(plain.logits());
  });

  it('an abort at any time ends the call or leaves the session whole', async () => {
    const model = await open(small);
    for (let i = 0; i < 200; i++) {
      const session = model.createSession();
      const abort = new AbortController();
      const run = session.prefill([1, 2], { signal: abort.signal }).then(
        () => undefined,
        (error) => error,
      );
      const until = performance.now() + (i % 20) / 20;
      while (performance.now() < until);
      abort.abort();
      const error = await run;
      if (error) expect(error).toMatchObject({ code: 'INTERRUPTED' });
      else await session.decode(1);
      await session.close();
    }
  });

  it('an abort after the end changes nothing', async () => {
    const session = (await open(small)).createSession();
    const abort = new AbortController();
    await session.prefill([1, 2], { signal: abort.signal });
    abort.abort();
    await session.decode(1);
  });

  it('closing the model ends what runs, and what waits', async () => {
    const model = await open(slow, SLOWLY);
    const sessions = [model.createSession(), model.createSession()];
    const settled = Promise.allSettled(sessions.map((session) => session.prefill(LONG)));
    await computing(sessions[0]!);
    await model.close();
    for (const result of await settled) {
      expect(result).toMatchObject({ status: 'rejected', reason: { code: 'INTERRUPTED' } });
    }
  });

  it('the event loop turns while the engine computes', async () => {
    const session = (await open(slow, SLOWLY)).createSession();
    const abort = new AbortController();
    let ended = false;
    const run = session.prefill(LONG, { signal: abort.signal }).finally(() => (ended = true));
    const aborted = expect(run).rejects.toMatchObject({ code: 'INTERRUPTED' });
    await computing(session);
    await new Promise(setImmediate);
    expect(ended).toBe(false);
    abort.abort();
    await aborted;
  });

  it('opening, generating, aborting and closing, again and again', async () => {
    for (let i = 0; i < 50; i++) {
      const model = await Model.open(small, { engine: 'native', threads: 2 });
      const session = model.createSession();
      const abort = new AbortController();
      const generation = session.generate({ ids: [1, 2], maxTokens: 20, signal: abort.signal });
      await generation.next();
      if (i % 2) abort.abort();
      await generation.next().catch(() => undefined);
      await model.close();
    }
  });
});

describe('worker threads', () => {
  const start = (path: string, ids: number[], options: OpenModelOptions = {}) =>
    new Worker(new URL('native-worker.mjs', import.meta.url), { workerData: { path, ids, options } });

  const messages = (worker: Worker, count: number) =>
    new Promise<unknown[]>((resolve, reject) => {
      const all: unknown[] = [];
      worker.on('message', (message) => all.push(message) === count && resolve(all));
      worker.on('error', reject);
    });

  it('several at once give what the main thread gives', async () => {
    const session = (await open(small)).createSession();
    await session.prefill([3, 1, 4]);
    const workers = [1, 2, 3].map(() => start(small, [3, 1, 4], { threads: 2 }));
    for (const [, logits] of await Promise.all(workers.map((worker) => messages(worker, 2)))) {
      expect(logits).toEqual(session.logits());
    }
    await Promise.all(workers.map((worker) => worker.terminate()));
  });

  it('a worker that is ended while its engine computes', async () => {
    const worker = start(slow, LONG, SLOWLY);
    await messages(worker, 1);
    expect(await worker.terminate()).toBe(1);
    await (await open(small)).createSession().prefill([1]);
  });
});
