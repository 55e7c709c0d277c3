/** Places, queues, keys and the end: what the server does when there is too much of something. */
import { connect } from 'node:net';
import { expect, it } from 'vitest';
import { events, ONCE, post, type Running, serve, until } from './helpers.js';

/** Goes on until it is stopped: its context has room for 380 tokens. */
const LONG = { model: 'stories', prompt: ONCE, max_tokens: 380, ignore_eos: true, temperature: 0 };
const SHORT = { model: 'stories', prompt: ONCE, max_tokens: 4, temperature: 0 };

const running = ({ service }: Running) =>
  service.pool.models.reduce((sum, { loaded }) => sum + (loaded?.scheduler.stats().running ?? 0), 0);
const waiting = ({ service }: Running) =>
  service.pool.models.reduce((sum, { loaded }) => sum + (loaded?.scheduler.stats().waiting ?? 0), 0);

/** A connection that sends a request and reads nothing of the answer until it is told to. */
function unread(server: Running, body: unknown) {
  const text = JSON.stringify(body);
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
  socket.pause();
  const head = 'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json';
  socket.write(`${head}\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
  return socket;
}

it('frees the place of a client that goes away, while it streams and while it waits', async () => {
  const server = await serve({ maxSequences: 1 });
  const streaming = new AbortController();
  const response = await post(
    `${server.url}/v1/completions`,
    { ...LONG, stream: true },
    { signal: streaming.signal },
  );
  const queued = new AbortController();
  const lost = post(`${server.url}/v1/completions`, LONG, { signal: queued.signal }).catch(
    (error) => error.name,
  );
  await until(() => waiting(server) === 1);
  queued.abort();
  expect(await lost).toBe('AbortError');
  await until(() => waiting(server) === 0);
  expect(running(server)).toBe(1);
  streaming.abort();
  await response.body!.cancel().catch(() => undefined);
  await until(() => running(server) === 0 && server.service.admission.size === 0);
  expect((await post(`${server.url}/v1/completions`, SHORT)).status).toBe(200);
});

it('answers 429 with Retry-After when the queue is full, before it reads the body', async () => {
  const server = await serve({ maxSequences: 1, maxQueue: 1 });
  const first = unread(server, { ...LONG, stream: true });
  const second = unread(server, LONG);
  await until(() => server.service.admission.size === 2);
  const refused = await post(`${server.url}/v1/completions`, '{');
  expect(refused.status).toBe(429);
  expect(refused.headers.get('retry-after')).toMatch(/^\d+$/);
  expect(refused.headers.get('x-should-retry')).toBe('true');
  expect(await refused.json()).toMatchObject({
    error: { type: 'rate_limit_error', code: 'rate_limit_exceeded' },
  });
  expect((await fetch(`${server.url}/health`)).status).toBe(200);
  first.destroy();
  second.destroy();
  await until(() => server.service.admission.size === 0);
  expect((await post(`${server.url}/v1/completions`, SHORT)).status).toBe(200);
});

it('serves whoever waits, in their order, when a place is free', async () => {
  const server = await serve({ maxSequences: 2 });
  const answers = await Promise.all(
    Array.from({ length: 12 }, () => post(`${server.url}/v1/completions`, SHORT)),
  );
  const texts = await Promise.all(
    answers.map(async (each) => ((await each.json()) as { choices: { text: string }[] }).choices[0]!.text),
  );
  expect(new Set(texts)).toEqual(new Set([', there was a']));
});

it('ends a request that takes too long, with an error that clients do not repeat', async () => {
  const { url } = await serve({ requestMs: 1 });
  const late = await post(`${url}/v1/completions`, LONG);
  expect([late.status, late.headers.get('x-should-retry')]).toEqual([504, 'false']);
  expect(await late.json()).toMatchObject({
    error: { type: 'timeout_error', message: expect.stringContaining('--timeout') },
  });
});

it('a stream that has begun ends with the error as its last event', async () => {
  const server = await serve({ drainMs: 0 });
  const response = await post(`${server.url}/v1/completions`, { ...LONG, n: 8, stream: true });
  const end = server.drain();
  const got = await events(response);
  expect(got.at(-1)).toMatchObject({ error: { code: 'shutting_down', type: 'server_error' } });
  await end;
});

it('lets running requests end when it ends, and takes no new ones', async () => {
  const server = await serve({ drainMs: 60_000 });
  const running = await post(`${server.url}/v1/completions`, { ...LONG, n: 4, stream: true });
  const end = server.drain();
  const refused = await post(`${server.url}/v1/completions`, SHORT);
  expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, '5']);
  expect((await fetch(`${server.url}/health`)).status).toBe(503);
  const got = (await events(running)) as { choices: { finish_reason: string | null }[] }[];
  const finished = got.flatMap(({ choices }) => choices).filter((choice) => choice.finish_reason);
  expect(finished.map((choice) => choice.finish_reason)).toEqual(Array(4).fill('length'));
  await end;
  await expect(fetch(`${server.url}/health`)).rejects.toThrow();
});

it('ends although a client that left a stream keeps its connection, long before Node would close that', async () => {
  const server = await serve();
  const stream = await post(`${server.url}/v1/completions`, { ...LONG, n: 3, stream: true });
  await stream.body!.cancel();
  await server.drain();
}, 40_000);

it('cuts off a client that leaves its answer unread', async () => {
  const server = await serve({ stallMs: 50 });
  // Log-probabilities make an answer larger than the socket’s buffers hold.
  const body = { ...LONG, n: 16, logprobs: 20, stream: true };
  const socket = unread(server, body);
  await until(() => server.service.admission.size === 1);
  await until(() => server.service.admission.size === 0 && running(server) === 0);
  socket.destroy();
});

it('wants one of its keys, everywhere but at the probe', async () => {
  const { url } = await serve({ apiKeys: ['first', 'second'] });
  const status = async (path: string, authorization?: string) =>
    (await fetch(url + path, authorization ? { headers: { authorization } } : {})).status;
  expect(await status('/health')).toBe(200);
  for (const path of ['/v1/models', '/metrics', '/openapi.json', '/nothing']) {
    expect([path, await status(path)]).toEqual([path, 401]);
    for (const key of ['Bearer wrong', 'Bearer ', 'first', 'Bearer first2', 'Bearer firs'])
      expect([path, key, await status(path, key)]).toEqual([path, key, 401]);
  }
  expect(await status('/v1/models', 'Bearer first')).toBe(200);
  expect(await status('/v1/models', 'bearer second')).toBe(200);
});

it('answers pages of other origins only where they are allowed, and no foreign host without a key', async () => {
  const closed = await serve();
  const preflight = (url: string) =>
    fetch(`${url}/v1/chat/completions`, {
      method: 'OPTIONS',
      headers: { origin: 'https://page.example', 'access-control-request-method': 'POST' },
    });
  expect((await preflight(closed.url)).headers.get('access-control-allow-origin')).toBeNull();
  const open = await serve({ corsOrigins: ['https://page.example'] });
  expect((await preflight(open.url)).headers.get('access-control-allow-origin')).toBe('https://page.example');
  const headers = { origin: 'https://page.example' };
  const stream = await post(`${open.url}/v1/completions`, { ...SHORT, stream: true }, { headers });
  expect(stream.headers.get('access-control-allow-origin')).toBe('https://page.example');
  await stream.text();
  const answer = await new Promise<string>((resolve) => {
    const socket = connect(Number(new URL(closed.url).port), '127.0.0.1');
    socket.end('GET /v1/models HTTP/1.1\r\nhost: rebound.example\r\nconnection: close\r\n\r\n');
    const pieces: Buffer[] = [];
    socket
      .on('data', (piece) => pieces.push(piece))
      .on('close', () => resolve(String(Buffer.concat(pieces))));
  });
  expect(answer).toContain('403');
  expect(answer).toContain('host_not_allowed');
});

it('says in its log what was asked, and never the prompt unless told to', async () => {
  for (const logPrompts of [false, true]) {
    const lines: string[] = [];
    const stream = { write: (line: string) => void lines.push(line) };
    const { url } = await serve({ log: { level: 'debug', stream }, logPrompts });
    const secret = 'Xylophon';
    await post(`${url}/v1/completions`, { ...SHORT, prompt: secret });
    await post(`${url}/v1/completions`, { ...SHORT, prompt: secret, [secret]: 1 });
    await post(`${url}/v1/completions`, `{"prompt": "${secret}`);
    await post(`${url}/v1/completions?q=${secret}`, { ...SHORT, prompt: [9999], stop: secret });
    await fetch(`${url}/${secret}`);
    await until(() => lines.filter((line) => line.includes('"msg":"request"')).length === 5);
    const text = lines.join('');
    expect(text).toContain('"route":"/v1/completions","status":200');
    expect(text.includes(secret)).toBe(logPrompts);
  }
});

it('counts requests, tokens and models for Prometheus', async () => {
  const server = await serve();
  await (await post(`${server.url}/v1/completions`, SHORT)).json();
  await (await post(`${server.url}/v1/completions`, '{')).json();
  const text = await (await fetch(`${server.url}/metrics`)).text();
  for (const line of [
    'cflow_requests_total{route="/v1/completions",status="200"} 1',
    'cflow_requests_total{route="/v1/completions",status="400"} 1',
    'cflow_generated_tokens_total{model="stories"} 4',
    'cflow_prompt_tokens_total{model="stories"} 5',
    'cflow_first_token_seconds_count{model="stories"} 1',
    'cflow_queue_length{model="stories"} 0',
    'cflow_model_loads_total{model="stories",event="loaded"} 1',
  ])
    expect(text).toContain(line);
});
