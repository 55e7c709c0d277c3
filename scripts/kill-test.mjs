/**
 * Kills conversions with SIGKILL at random moments: what is left is never taken for an output, and `--resume` gives the
 * bytes of a conversion that nobody disturbed. Exit 1 if not.
 *
 *     npm run build && node scripts/kill-test.mjs [--kills 10] [--megabytes 300] [--seed 1]
 *
 * Three kinds: of a directory; of a repository through the Hub's cache; of a repository past it (--no-cache). The Hub
 * is a small server of this script that sends slowly enough to be interrupted.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const { values } = parseArgs({
  options: {
    kills: { type: 'string', default: '10' },
    megabytes: { type: 'string', default: '300' },
    seed: { type: 'string', default: '1' },
  },
});
const kills = Number(values.kills);
const COMMIT = 'c0ffee'.padEnd(40, '0');
const SLICE_BYTES = 1 << 20;
const SLICE_MS = 4;
const bin = fileURLToPath(new URL('../packages/convert/bin/cflow-convert.js', import.meta.url));
const root = mkdtempSync(join(tmpdir(), 'cflow-kill-'));

/** Numbers in [0, 1), the same for the same seed (mulberry32). */
let state = Number(values.seed);
function random() {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}

/** A llama in BF16 with two shards and an index. */
function makeCheckpoint(dir) {
  const hidden = 512;
  const layers = 4;
  const vocab = Math.round((Number(values.megabytes) * 1e6) / 2 / hidden / 2);
  const shapes = [
    ['model.embed_tokens', [vocab, hidden]],
    ['lm_head', [vocab, hidden]],
    ['model.norm', [hidden]],
  ];
  for (let i = 0; i < layers; i++) {
    const at = (name) => `model.layers.${i}.${name}`;
    for (const name of ['input_layernorm', 'post_attention_layernorm']) shapes.push([at(name), [hidden]]);
    for (const name of 'qkvo') shapes.push([at(`self_attn.${name}_proj`), [hidden, hidden]]);
    for (const name of ['gate', 'up']) shapes.push([at(`mlp.${name}_proj`), [1100, hidden]]);
    shapes.push([at('mlp.down_proj'), [hidden, 1100]]);
  }
  const weight_map = {};
  for (const part of [0, 1]) {
    const file = `model-${part + 1}-of-2.safetensors`;
    const own = shapes.filter((_, index) => index % 2 === part);
    for (const [name] of own) weight_map[`${name}.weight`] = file;
    writeFileSync(join(dir, file), safetensors(own));
  }
  writeFileSync(join(dir, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map }));
  const config = {
    model_type: 'llama',
    hidden_size: hidden,
    intermediate_size: 1100,
    num_hidden_layers: layers,
    num_attention_heads: 8,
    num_key_value_heads: 8,
    vocab_size: vocab,
    tie_word_embeddings: false,
  };
  writeFileSync(join(dir, 'config.json'), JSON.stringify(config));
}

function safetensors(shapes) {
  let end = 0;
  const header = {};
  const data = shapes.map(([name, shape]) => {
    const count = shape.reduce((a, b) => a * b);
    // Sign and mantissa at random under an exponent of 2^-6.
    const weights = Uint16Array.from({ length: count }, () => (0x3c80 | (random() * 0x10000)) & 0xbcff);
    header[`${name}.weight`] = { dtype: 'BF16', shape, data_offsets: [end, end + 2 * count] };
    end += 2 * count;
    return Buffer.from(weights.buffer);
  });
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text, ...data]);
}

/** The parts of the Hub's API that a conversion asks for. */
async function serve(dir) {
  const files = Object.fromEntries(readdirSync(dir).map((name) => [name, readFileSync(join(dir, name))]));
  const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');
  const sha1 = (bytes) => createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');
  const tree = Object.entries(files).map(([path, bytes]) => ({
    type: 'file',
    path,
    size: bytes.length,
    oid: sha1(bytes),
    ...(path.endsWith('.safetensors') ? { lfs: { oid: sha256(bytes), size: bytes.length } } : {}),
  }));
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, 'http://hub');
    if (pathname.includes('/revision/'))
      return response.end(JSON.stringify({ sha: COMMIT, id: 'acme/killed' }));
    if (pathname.includes('/tree/')) return response.end(JSON.stringify(tree));
    const bytes = files[pathname.split('/').at(-1)];
    const [, start, last] = /bytes=(\d+)-(\d+)/.exec(request.headers.range);
    const end = Math.min(Number(last) + 1, bytes.length);
    response.writeHead(206, {
      'content-length': end - start,
      'content-range': `bytes ${start}-${end - 1}/${bytes.length}`,
    });
    for (let at = Number(start); at < end && !response.destroyed; at += SLICE_BYTES) {
      response.write(bytes.subarray(at, Math.min(end, at + SLICE_BYTES)));
      await pause(SLICE_MS);
    }
    response.end();
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server;
}

/** Runs the command; kills it after `ms`, if it still runs. Returns its exit code (null: killed) and time. */
async function command(args, env, ms) {
  const started = performance.now();
  const child = spawn(process.execPath, [bin, ...args], { env: { ...process.env, ...env }, stdio: 'pipe' });
  const output = [];
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => output.push(text));
  const timer = ms === undefined ? undefined : setTimeout(() => child.kill('SIGKILL'), ms);
  const code = await new Promise((resolve) => child.once('close', resolve));
  clearTimeout(timer);
  return { code, ms: performance.now() - started, text: Buffer.concat(output).toString() };
}

function hashOf(path) {
  return createHash('sha256').update(readFileSync(path)).digest('hex');
}

async function succeed(args, env) {
  const result = await command(args, env);
  if (result.code !== 0) throw new Error(`exit ${result.code}: ${result.text}`);
  return result;
}

/** Kills one kind of conversion again and again. Returns the number of failures. */
async function killing(kind, args, environment) {
  const place = (name) => {
    const dir = join(root, `${kind}-${name}`.replace(/\W+/g, '-'));
    mkdirSync(dir);
    return { dir, output: join(dir, 'm.cflow'), env: environment(dir) };
  };
  const whole = place('whole');
  const { ms } = await succeed([...args, whole.output], whole.env);
  const expected = hashOf(whole.output);
  rmSync(whole.dir, { recursive: true });
  let failures = 0;
  for (let i = 0; i < kills; i++) {
    const { dir, output, env } = place(String(i));
    const after = random() * ms;
    const killed = await command([...args, output], env, after);
    const early = existsSync(output) && hashOf(output) !== expected;
    const end = existsSync(output)
      ? { text: 'was complete' }
      : await succeed([...args, output, '--resume'], env);
    const right =
      !early &&
      hashOf(output) === expected &&
      readdirSync(dir).every((name) => /^(m\.cflow|home)$/.test(name));
    if (!right) failures++;
    const note = /note: (.*)/.exec(end.text)?.[1] ?? (end.text === 'was complete' ? end.text : 'began anew');
    const state = killed.code === null ? 'killed' : `exit ${killed.code}`;
    const when = `${state} after ${after.toFixed(0)} of ${ms.toFixed(0)} ms`;
    console.log(`${kind} ${i + 1}: ${when}; ${note}; ${right ? 'same bytes' : 'WRONG'}`);
    rmSync(dir, { recursive: true });
  }
  return failures;
}

const dir = join(root, 'killed');
mkdirSync(dir);
let server;
try {
  makeCheckpoint(dir);
  server = await serve(dir);
  const HF_ENDPOINT = `http://127.0.0.1:${server.address().port}`;
  const hub = (out) => ({ HF_ENDPOINT, HF_HOME: join(out, 'home'), HF_TOKEN: '', HF_HUB_OFFLINE: '' });
  let failures = await killing('directory', [dir], () => ({}));
  failures += await killing('hub, cached', ['hf:acme/killed'], hub);
  failures += await killing('hub, streamed', ['hf:acme/killed', '--no-cache'], hub);
  console.log(failures === 0 ? 'all the same bytes' : `${failures} WRONG`);
  process.exitCode = failures === 0 ? 0 : 1;
} finally {
  server?.closeAllConnections();
  server?.close();
  rmSync(root, { recursive: true });
}
