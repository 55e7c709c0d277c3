/**
 * The compiled addon without what is around it: opens, runs, cancels, detaches, closes and drops, on the main thread and in
 * workers that are terminated at any time, in two copies of the addon at once. Run by native-stress.test.ts, and under
 * sanitizers by scripts/sanitize.mjs. Prints `stress: N operations`; whatever goes wrong ends the process.
 *
 *     node native-stress.mjs ADDON MODEL ROUNDS [COPY OF ADDON]
 */
import { createRequire } from 'node:module';
import { setImmediate, setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { isMainThread, Worker, workerData } from 'node:worker_threads';
import { buildPlan, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { lowerPlan } from '../dist/native/lower.js';

const OPTIONS = {
  arithmetic: 'f32',
  cache: 'f32',
  threads: 2,
  maxBatch: 8,
  isa: '',
  profile: true,
  shareShort: true,
  recordRoutings: true,
};
/** What an operation may end with when others close and cancel beside it. */
const EXPECTED = new Set(['INTERRUPTED', 'USAGE']);
setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc');

let seed = 1;
const random = (n) => {
  seed = (seed * 1103515245 + 12345) % 2 ** 31;
  return seed % n;
};

/** What a call throws or rejects with must be expected. */
async function allowed(work) {
  try {
    return await work();
  } catch (error) {
    if (!EXPECTED.has(error.code)) throw error;
    return undefined;
  }
}

async function useSession(engine, vocabSize) {
  const session = await allowed(() => engine.createSession());
  if (!session) return;
  const logits = new Float32Array(vocabSize);
  const ids = Int32Array.from({ length: 1 + random(20) }, () => random(90));
  const run = allowed(() => session.run(ids, logits, false));
  const what = random(6);
  if (what === 0) session.cancel();
  if (what === 1) await allowed(() => session.run(ids, logits, false));
  if (what === 2) structuredClone(logits, { transfer: [logits.buffer] });
  if (what === 3) void allowed(() => session.close());
  if (what === 4) await setImmediate();
  session.cacheBytes();
  // Half of them are dropped while they run.
  if (random(2)) await run;
}

async function round(addon, model) {
  const { fd, size, program } = model;
  const weights = random(2) ? 'mapped' : 'resident';
  const spill = { cacheMemory: 2 ** 20, directory: '/tmp' };
  const engine = await addon.openEngine(fd, size, program, {
    ...OPTIONS,
    weights,
    ...(random(2) && { spill }),
  });
  const uses = Array.from({ length: 3 }, () => useSession(engine, program.vocabSize));
  if (random(3) === 0) void allowed(() => engine.close());
  await allowed(async () => engine.stats());
  await allowed(async () => engine.takeRoutings());
  if (random(4) === 0) {
    const disk = {
      block: 4096,
      depth: 2,
      milliseconds: 5,
      backend: random(2) ? 'auto' : 'threads',
      mode: 'auto',
    };
    void addon.diskBandwidth(fd, size, disk);
  }
  if (random(2)) await Promise.all(uses);
  if (random(3) === 0) await allowed(() => engine.close());
  if (random(4) === 0) gc();
}

async function load(addonPath, modelPath) {
  const source = await openFileSource(modelPath);
  const file = await openModel(source);
  const lowered = lowerPlan(buildPlan(file.config, { transfers: 'none' }), file, {
    arithmetic: 'f32',
    delayAware: true,
  });
  const addon = createRequire(import.meta.url)(addonPath);
  return { addon, model: { source, fd: source.fd, size: source.size, program: lowered.program } };
}

if (isMainThread) {
  const [addonPath, modelPath, rounds, copy] = process.argv.slice(2);
  const { addon, model } = await load(addonPath, modelPath);
  const other = copy && createRequire(import.meta.url)(copy);
  let operations = 0;
  for (let i = 0; i < Number(rounds); i++) {
    const worker =
      i % 4
        ? undefined
        : new Worker(fileURLToPath(import.meta.url), { workerData: [addonPath, modelPath, i] });
    const failed = worker && new Promise((_, reject) => worker.on('error', reject));
    const work = (async () => {
      await Promise.all([round(addon, model), other && round(other, model)]);
      if (worker) await setTimeout(50 + random(200));
      await worker?.terminate();
    })();
    await (failed ? Promise.race([work, failed]) : work);
    operations++;
  }
  gc();
  await setTimeout(50);
  await model.source.close();
  console.log(`stress: ${operations} operations`);
} else {
  const [addonPath, modelPath, first] = workerData;
  seed = first + 1;
  const { addon, model } = await load(addonPath, modelPath);
  for (;;) await round(addon, model);
}
