/**
 * Sends requests of every kind to a cflow-serve of its own, many at once: whole and streamed answers, clients that go away,
 * slow readers, bad JSON, bodies that are too large, wrong keys. Fails if a text is wrong, if an error is not OpenAI's
 * envelope, or if memory, sequences or sockets are not back at the start.
 *
 *     node scripts/soak-serve.mjs MODEL.cflow [REQUESTS = 10000] [SEED = 1]
 */
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { fileURLToPath } from 'node:url';

const [model, requests = '10000', seed = '1'] = process.argv.slice(2);
const COUNT = Number(requests);
const CLIENTS = 42;
const KEY = 'soak';
/** What the process may keep, in MiB. */
const GROWTH = 24;
/** With a small heap V8 collects in time: what is left is not garbage of the moment. */
const HEAP = ['--max-semi-space-size=2', '--max-old-space-size=96'];
/** Requests before memory is measured: code is compiled, pools are filled. */
const WARM = Math.ceil(0.4 * COUNT);

/** Mulberry32: numbers below 1. */
function randomOf(start) {
  let a = start >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
const random = randomOf(Number(seed));
const pick = (list) => list[Math.floor(random() * list.length)];
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const command = fileURLToPath(new URL('../packages/serve/bin/cflow-serve.js', import.meta.url));
const options = [
  '--port',
  '0',
  '--api-key',
  KEY,
  '--prefix-cache',
  '4MiB',
  '--max-queue',
  '32',
  '--max-body',
  '64KiB',
  '--log-level',
  'silent',
];
const server = spawn(process.execPath, [...HEAP, command, `m=${model}`, ...options], {
  stdio: ['ignore', 'inherit', 'pipe'],
});
process.on('exit', () => server.kill('SIGKILL'));
const port = await new Promise((resolve, reject) => {
  let text = '';
  server.stderr.on('data', (piece) => {
    text += piece;
    const [, found] = /listening on http:\/\/[^:]+:(\d+)/.exec(text) ?? [];
    if (found) resolve(Number(found));
  });
  server.once('exit', () => reject(new Error(`the server ended: ${text}`)));
});
const agent = new Agent({ keepAlive: true, maxSockets: CLIENTS });

/** Sends a body; `onResponse` reads the answer as it likes. Resolves to status and text; status 0 = no answer. */
function send(body, { key = KEY, path = '/v1/completions', onResponse = readAll, method = 'POST' } = {}) {
  return new Promise((resolve) => {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}` };
    const sent = request({ port, agent, method, path, headers });
    sent.once('error', () => resolve({ status: 0, text: '' }));
    sent.once('response', (response) => {
      response.once('error', () => undefined);
      onResponse(response, sent).then((text) => resolve({ status: response.statusCode, text }));
    });
    sent.end(body);
  });
}

async function readAll(response) {
  let text = '';
  for await (const piece of response) text += piece;
  return text;
}

async function readSlowly(response) {
  let text = '';
  for await (const piece of response) {
    text += piece;
    await sleep(random() * 20);
  }
  return text;
}

async function leave(_response, sent) {
  await sleep(random() * 30);
  sent.destroy();
  return '';
}

const completion = (fields) => JSON.stringify({ model: 'm', ...fields });
const joined = (text) =>
  text
    .split('\n\n')
    .filter((line) => line.startsWith('data: {'))
    .flatMap((line) => JSON.parse(line.slice(6)).choices)
    .map((choice) => choice.text)
    .join('');
const wholeText = (text) => JSON.parse(text).choices[0].text;

/** Prompts with their answers, known beforehand. */
const tasks = [
  ...['Once upon a time', 'The dog', 'Lily and Max', ''].map((prompt) => ({
    prompt,
    temperature: 0,
    max_tokens: 24,
  })),
  ...[1, 2, 3].map((each) => ({ prompt: 'One day', temperature: 1, seed: each, max_tokens: 16 })),
  { prompt: 'Once upon a time', temperature: 0, max_tokens: 200, stop: [' park'] },
];
for (const task of tasks) task.expected = wholeText((await send(completion(strip(task)))).text);
function strip({ expected: _, ...task }) {
  return task;
}

const isEnvelope = (text) => {
  const { error } = JSON.parse(text);
  return ['message', 'type', 'param', 'code'].every((name) => name in error);
};

/** Kinds of requests: what they send, and what is right. `share` of all. */
const KINDS = {
  whole: {
    share: 4,
    run: (task) => send(completion(strip(task))),
    right: ({ text }, task) => wholeText(text) === task.expected,
  },
  stream: {
    share: 4,
    run: (task) => send(completion({ ...strip(task), stream: true })),
    right: ({ text }, task) => text.endsWith('data: [DONE]\n\n') && joined(text) === task.expected,
  },
  slow: {
    share: 1,
    run: (task) => send(completion({ ...strip(task), stream: true }), { onResponse: readSlowly }),
    right: ({ text }, task) => joined(text) === task.expected,
  },
  aborted: {
    share: 4,
    run: () =>
      send(completion({ prompt: 'One day', max_tokens: 300, ignore_eos: true, stream: true }), {
        onResponse: leave,
      }),
  },
  several: {
    share: 1,
    run: (task) => send(completion({ ...strip(task), n: 3 })),
    right: ({ text }, task) => wholeText(text) === task.expected && JSON.parse(text).choices.length === 3,
  },
  badJson: {
    share: 2,
    status: 400,
    run: () => send(pick(['{', '[]', '"', '{"model": 5}', '{"model":"m","prompt":"a","x":1}', '\u0000'])),
  },
  tooLarge: { share: 1, status: 413, run: () => send(completion({ prompt: 'x'.repeat(70_000) })) },
  wrongKey: {
    share: 1,
    status: 401,
    run: (task) => send(completion(strip(task)), { key: pick(['', 'soa', 'soakk', 'x'.repeat(5000)]) }),
  },
  noModel: { share: 1, status: 404, run: () => send(completion({ model: 'x', prompt: 'a' })) },
};
const bag = Object.entries(KINDS).flatMap(([name, { share }]) => Array(share).fill(name));

const counts = {};
const problems = [];

/** Sends one request; resolves to its status. */
async function one() {
  const name = pick(bag);
  const kind = KINDS[name];
  const task = pick(tasks);
  const answer = await kind.run(task);
  const refused = answer.status === 429;
  const row = `${name} ${answer.status}`;
  counts[row] = (counts[row] ?? 0) + 1;
  // A body that is too large may be refused while it is sent; who left has read nothing.
  if (name === 'aborted' || (answer.status === 0 && name === 'tooLarge')) return answer.status;
  const right =
    refused || kind.status
      ? (refused || answer.status === kind.status) && isEnvelope(answer.text)
      : answer.status === 200 && kind.right(answer, task);
  if (!right) problems.push(`${row}: ${answer.text.slice(0, 300)}`);
  return answer.status;
}

async function many(count) {
  let left = count;
  const client = async () => {
    while (left-- > 0) if ((await one()) === 429) await sleep(200);
  };
  await Promise.all(Array.from({ length: CLIENTS }, client));
}

/** Memory in MiB and sockets of the server, sequences that are generated. */
async function figures() {
  agent.destroy();
  await sleep(1500);
  const { text } = await send('', { method: 'GET', path: '/metrics' });
  const sum = (name) =>
    [...text.matchAll(new RegExp(`^${name}\\S* (\\S+)$`, 'gm'))].reduce(
      (all, [, value]) => all + Number(value),
      0,
    );
  agent.destroy();
  await sleep(200);
  const rss = Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.pid}/status`, 'utf8'))[1]) / 1024;
  const targets = readdirSync(`/proc/${server.pid}/fd`).map((fd) => linkOf(`/proc/${server.pid}/fd/${fd}`));
  return {
    rss: Math.round(rss),
    sockets: targets.filter((target) => target.startsWith('socket:')).length,
    requests: sum('cflow_requests_running'),
    sequences: sum('cflow_sequences_running') + sum('cflow_queue_length'),
  };
}

function linkOf(path) {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}

const start = performance.now();
await many(WARM);
const before = await figures();
await many(COUNT - WARM);
const after = await figures();
const seconds = (performance.now() - start) / 1000;

if (after.rss > before.rss + GROWTH) problems.push(`memory grew from ${before.rss} to ${after.rss} MiB`);
if (after.sockets > before.sockets)
  problems.push(`${after.sockets} sockets are open, ${before.sockets} were`);
if (after.requests + after.sequences > 0)
  problems.push(`${after.sequences} sequences, ${after.requests} requests are left`);
server.removeAllListeners('exit');
const ended = new Promise((resolve) => server.once('exit', resolve));
server.kill('SIGTERM');
if ((await ended) !== 0) problems.push('the server did not end with 0');

console.log(
  JSON.stringify({ requests: COUNT, seconds: Math.round(seconds), before, after, counts }, undefined, 2),
);
for (const problem of problems.slice(0, 20)) console.error(problem);
process.exitCode = problems.length > 0 ? 1 : 0;
