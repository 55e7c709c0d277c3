/** Many clients at once: the short form of scripts/soak-serve.mjs, and 500 connections against a full queue. */
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { request } from 'node:http';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it, onTestFinished } from 'vitest';
import { models, ONCE, serve, until } from './helpers.js';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
const run = promisify(execFile);

it('requests of every kind leave no memory, sequence or socket behind, and every text is right', async () => {
  const script = join(ROOT, 'scripts/soak-serve.mjs');
  const model = join(await models(), 'stories.cflow');
  const { stdout } = await run(process.execPath, [script, model, '400']);
  const { counts } = JSON.parse(stdout) as { counts: Record<string, number> };
  // All kinds were met.
  for (const row of ['whole 200', 'stream 200', 'aborted 200', 'badJson 400', 'tooLarge 413', 'wrongKey 401'])
    expect(counts[row]).toBeGreaterThan(0);
});

it('answers 500 connections against a full queue with 429, each of them', async () => {
  const { url, service } = await serve({ maxSequences: 1, maxQueue: 1 });
  // Two that are not read have all places.
  const body = JSON.stringify({
    model: 'stories',
    prompt: ONCE,
    max_tokens: 380,
    ignore_eos: true,
    n: 16,
    logprobs: 20,
  });
  for (let i = 0; i < 2; i++) {
    const held = request(`${url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
    });
    held.on('error', () => undefined).end(body.replace('}', ',"stream":true}'));
    const [response] = (await Promise.race([
      once(held, 'response'),
      until(() => service.admission.size === i + 1).then(() => []),
    ])) as [NodeJS.ReadableStream?];
    response?.pause();
    onTestFinished(() => void held.destroy());
  }
  await until(() => service.admission.size === 2);
  const tool = join(ROOT, 'node_modules/autocannon/autocannon.js');
  const post = ['-m', 'POST', '-H', 'content-type=application/json', '-b', body];
  const args = [tool, '-j', '-c', '500', '-a', '3000', ...post, `${url}/v1/completions`];
  const { stdout } = await run(process.execPath, args, { maxBuffer: 2 ** 24 });
  const { statusCodeStats, errors, timeouts } = JSON.parse(stdout.slice(stdout.indexOf('{')));
  expect({ statusCodeStats, errors, timeouts }).toEqual({
    statusCodeStats: { 429: { count: 3000 } },
    errors: 0,
    timeouts: 0,
  });
});
