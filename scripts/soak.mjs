/**
 * Opens a small model, generates, aborts and closes, again and again: memory must not grow, and the event loop must
 * stay free while the engine computes. Exit 1 if either fails.
 *
 *     npm run build && node scripts/soak.mjs [--cycles 10000] [--growth 16] [--delay 20] [--tokens 4000] [--model FILE]
 *
 * growth: MiB by which the resident set may exceed what it was after warm-up: 1,000 cycles, or half of fewer than 2,000.
 * delay: milliseconds that the event loop may be late while `tokens` are generated, 200 at a time; time in which
 * the system gave the core to another process is measured too, and does not count.
 * model: what generates them; a bundled model if absent. Opening it is timed, but has no bound.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { convert } from '../packages/convert/dist/index.js';
import { Model } from '../packages/runtime-native/dist/index.js';
import { collect, MIB, Pauses } from './soak-watch.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const { values } = parseArgs({
  options: {
    cycles: { type: 'string', default: '10000' },
    growth: { type: 'string', default: '16' },
    delay: { type: 'string', default: '20' },
    tokens: { type: 'string', default: '4000' },
    model: { type: 'string' },
  },
});
const cycles = Number(values.cycles);
const directory = mkdtempSync(join(tmpdir(), 'cflow-soak-'));
process.on('exit', () => rmSync(directory, { recursive: true, force: true }));

async function converted(source, name) {
  const output = join(directory, name);
  await convert({ source: join(root, source), output });
  return output;
}

/** One model and session from beginning to end; every way to end a generation has its turn. */
async function cycle(path, i) {
  const weights = i % 2 ? 'mapped' : 'resident';
  const model = await Model.open(path, { engine: 'native', threads: 2, weights });
  const session = model.createSession();
  const abort = new AbortController();
  const generation = session.generate({
    ids: [1, 2, 3],
    maxTokens: 8,
    signal: abort.signal,
    ignoreEos: true,
  });
  await generation.next();
  const next = generation.next();
  if (i % 3 === 0) abort.abort();
  await next.catch(() => undefined);
  if (i % 3 === 1) await session.close();
  if (i % 5 === 0) await Promise.all([model.close(), generation.next().catch(() => undefined)]);
  await model.close();
}

function memory() {
  collect();
  const { rss, external, heapUsed } = process.memoryUsage();
  return {
    rss,
    text: [
      `RSS ${(rss / MIB).toFixed(1)}`,
      `heap ${(heapUsed / MIB).toFixed(1)}`,
      `external ${(external / MIB).toFixed(1)} MiB`,
    ].join(', '),
  };
}

async function soak(path) {
  const every = Math.max(1, Math.round(cycles / 10));
  const warm = Math.min(1000, Math.ceil(cycles / 2));
  let base = 0;
  let rss = 0;
  let pauses = new Pauses();
  for (let i = 1; i <= cycles; i++) {
    await cycle(path, i);
    if (i !== warm && i % every) continue;
    const { text: late } = pauses.end();
    const now = memory();
    ({ rss } = now);
    if (i === warm) base = rss;
    console.log(`${String(i).padStart(6)} cycles: ${now.text}; ${late}`);
    pauses = new Pauses();
  }
  pauses.end();
  const grown = (rss - base) / MIB;
  console.log(`grown by ${grown.toFixed(1)} MiB after warm-up; the bound is ${values.growth} MiB`);
  return grown <= Number(values.growth);
}

async function decode(path) {
  const opening = new Pauses();
  const model = await Model.open(path, { engine: 'native' });
  const session = model.createSession();
  console.log(`opening, ${session.stats().native.weights}: ${opening.end().text}`);
  await session.close();
  const pauses = new Pauses();
  let tokens = 0;
  for (let seed = 0; tokens < Number(values.tokens); seed++) {
    const session = model.createSession();
    for await (const _ of session.generate({ ids: [1], maxTokens: 200, ignoreEos: true, seed })) tokens++;
    await session.close();
  }
  const { own, text } = pauses.end();
  await model.close();
  console.log(`decoding ${tokens} tokens: ${text}; the bound is ${values.delay} ms`);
  return own <= Number(values.delay);
}

const small = await converted('packages/runtime-native/test/golden/arch2_4', 'small.cflow');
const flat = await soak(small);
const free = await decode(values.model ?? (await converted('models/stories-arch2_4', 'stories.cflow')));
process.exitCode = flat && free ? 0 : 1;
