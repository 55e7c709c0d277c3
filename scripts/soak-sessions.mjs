/**
 * Opens sessions of one small model, runs and aborts them, closes or drops them, again and again: threads, mappings,
 * descriptors and memory must not grow, and the event loop must stay free. Models are opened and closed, or dropped,
 * beside them. Exit 1 if anything fails.
 *
 *     npm run build && node scripts/soak-sessions.mjs [--sessions 100000] [--minutes 60] [--spread]
 *         [--growth 16] [--delay 10]
 *
 * Ends after so many sessions or minutes, whichever comes first. spread: take all the minutes, at an even pace. growth:
 * MiB that the resident set may exceed what it was after the first tenth, which is warm-up. delay: milliseconds that the
 * event loop may be late after it; time in which the system gave the core to another process is measured, and does not
 * count, nor do collections that this script asks for.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate, setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { convert } from '../packages/convert/dist/index.js';
import { Model } from '../packages/runtime-native/dist/index.js';
import { collect, MIB, Pauses } from './soak-watch.mjs';

const { values } = parseArgs({
  options: {
    sessions: { type: 'string', default: '100000' },
    minutes: { type: 'string', default: '60' },
    spread: { type: 'boolean', default: false },
    growth: { type: 'string', default: '16' },
    delay: { type: 'string', default: '10' },
  },
});
const [most, minutes, growth, delay] = ['sessions', 'minutes', 'growth', 'delay'].map((name) =>
  Number(values[name]),
);
const root = fileURLToPath(new URL('..', import.meta.url));
const directory = mkdtempSync(join(tmpdir(), 'cflow-soak-'));
process.on('exit', () => rmSync(directory, { recursive: true, force: true }));

const output = join(directory, 'small.cflow');
await convert({ source: join(root, 'packages/runtime-native/test/golden/arch2_4'), output });
const model = await Model.open(output, { engine: 'native', threads: 2 });

/** What one session does; returns how it ended. */
async function session(i) {
  const one = model.createSession();
  const abort = new AbortController();
  const run = one.prefill([1, 2, 3, (i % 90) + 1], { signal: abort.signal });
  if (i % 4 === 1) abort.abort();
  const aborted = await run.then(
    () => false,
    (error) => {
      if (error.code !== 'INTERRUPTED') throw error;
      return true;
    },
  );
  if (!aborted) await one.decode(5);
  // The others are dropped: nobody closes them.
  if (i % 2) await one.close();
  return aborted ? 'aborted' : i % 2 ? 'closed' : 'dropped';
}

/** A model from beginning to end, or dropped in the middle. */
async function other(i) {
  const weights = i % 2 ? 'mapped' : 'resident';
  const one = await Model.open(output, { engine: 'native', threads: 2, weights });
  await one.createSession().prefill([1]);
  if (i % 4 < 2) await one.close();
}

const entries = (folder) => readdirSync(folder).length;
async function holdings() {
  // Finalizers run between turns of the event loop, destruction on another thread.
  for (let i = 0; i < 20; i++) {
    collect();
    await setImmediate();
  }
  return {
    threads: entries('/proc/self/task'),
    mappings: readFileSync('/proc/self/maps', 'latin1').split('\n').length,
    descriptors: entries('/proc/self/fd'),
    rss: process.memoryUsage().rss / MIB,
  };
}
const words = ({ threads, mappings, descriptors, rss }) =>
  `${threads} threads, ${mappings} mappings, ${descriptors} descriptors, RSS ${rss.toFixed(1)} MiB`;

const start = performance.now();
const spent = () => (performance.now() - start) / 60_000;
const counts = { aborted: 0, closed: 0, dropped: 0 };
let done = 0;
let base;
let last;
let latest = 0;
let reported = 0;
let pauses = new Pauses();
for (; done < most && spent() < minutes; done++) {
  counts[await session(done)]++;
  if (done % 200 === 0) await other(done / 200);
  // Sixty at a time: a timer for each would measure timers.
  if (values.spread && done % 60 === 0)
    await setTimeout(Math.max(0, done / most - spent() / minutes) * minutes * 60_000);
  const part = Math.max(done / most, spent() / minutes);
  if (part * 20 < reported + 1) continue;
  reported = Math.floor(part * 20);
  const { own, text } = pauses.end();
  latest = Math.max(latest, own);
  last = await holdings();
  if (reported <= 2) [base, latest] = [last, 0];
  console.log(`${done + 1} sessions, ${spent().toFixed(1)} minutes: ${words(last)}; ${text}`);
  pauses = new Pauses();
}
latest = Math.max(latest, pauses.end().own);
last = await holdings();
await model.close();
const { aborted, closed, dropped } = counts;
console.log(
  `${done} sessions in ${spent().toFixed(1)} minutes: ${aborted} aborted, ${closed} closed, ${dropped} dropped`,
);
console.log(`at the beginning: ${words(base ?? last)}\nat the end:       ${words(last)}`);
console.log(`event loop late by ${latest.toFixed(1)} ms at worst; the bound is ${delay} ms`);
base ??= last;
const flat =
  last.threads <= base.threads + 1 &&
  last.mappings <= base.mappings + 40 &&
  last.descriptors <= base.descriptors + 2 &&
  last.rss <= base.rss + growth;
if (!flat) console.log('something grew');
process.exitCode = flat && latest <= delay ? 0 : 1;
