import { lstat, mkdir, stat, symlink, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it, vi } from 'vitest';
import { convert } from '../src/convert.js';
import { parseHubName } from '../src/hub/name.js';
import { llamaConfig, llamaFiles, RAGGED } from './cli-fixture.js';
import { COMMIT, first, hubWith, type Place, REPO, tree } from './hub-fixture.js';
import type { Fault, Seen } from './hub-server.js';

const TOKEN = 'secret-token-of-this-test';

/** The error of a conversion; repetitions come at once. */
async function failure(place: Place, change: object = {}): Promise<{ code: string; message: string }> {
  const request = {
    firstWaitMs: 1,
    threads: 1,
    source: `hf:${REPO}`,
    output: join(place.out, 'm.cflow'),
    ...change,
  };
  const error = await convert(request).then(
    () => new Error('it went through'),
    (cause) => cause,
  );
  await expect(stat(request.output)).rejects.toThrow('ENOENT');
  return error;
}

async function success(place: Place, change: object = {}): Promise<void> {
  const request = {
    firstWaitMs: 1,
    threads: 1,
    source: `hf:${REPO}`,
    output: join(place.out, 'm.cflow'),
    ...change,
  };
  await convert(request);
}

const always = (answer: Fault) => () => answer;
const onContent =
  (answer: Fault) =>
  ({ host }: Seen) =>
    host === 'content' ? answer : undefined;

describe('answers that no repetition changes', () => {
  it.each([
    [
      'no such repository, without a token',
      { source: 'hf:acme/none' },
      /acme\/none@main: .*401.*no such repository.*HF_TOKEN/,
    ],
    ['no such revision', { source: `hf:${REPO}@v9` }, /acme\/tiny@v9: .*404.*no such revision/],
  ])('%s', async (_, change, message) => {
    const place = await hubWith();
    expect(await failure(place, change)).toMatchObject({
      code: 'NOT_READABLE',
      message: expect.stringMatching(message),
    });
    expect(place.hub.seen).toHaveLength(1);
  });

  it('a gated repository: what to accept and where, without a token and with one that does not help', async () => {
    const place = await hubWith(llamaFiles(), { token: TOKEN });
    const remedy = `accept the conditions at ${place.hub.endpoint}/${REPO}`;
    expect((await failure(place)).message).toContain(`a gated repository: ${remedy} and set HF_TOKEN`);
    vi.stubEnv('HF_TOKEN', 'other');
    const { message } = await failure(place);
    expect(message).toContain(`${remedy}, or use a token`);
    expect(message).not.toContain('other');
  });

  it('a token from the environment or from a file opens it, and goes to the Hub alone', async () => {
    const place = await hubWith(llamaFiles(), { token: TOKEN });
    vi.stubEnv('HF_TOKEN_PATH', join(place.out, 'token'));
    await writeFile(join(place.out, 'token'), `${TOKEN}\n`);
    await success(place);
    for (const { host, authorization } of place.hub.seen) {
      expect(authorization).toBe(host === 'hub' ? `Bearer ${TOKEN}` : undefined);
    }
    expect(place.hub.seen.some(({ host }) => host === 'content')).toBe(true);
  });

  it('a repository without a configuration or without weights', async () => {
    expect(await failure(await hubWith({ 'README.md': '' }))).toMatchObject({
      code: 'NOT_READABLE',
      message: expect.stringContaining(`hf:${REPO}: config.json: missing`),
    });
    expect(
      await failure(await hubWith({ 'config.json': llamaConfig(RAGGED), 'pytorch_model.bin': 'x' })),
    ).toMatchObject({
      code: 'NOT_READABLE',
      message: expect.stringContaining('save the model as safetensors'),
    });
  });
});

describe('answers that another attempt mends', () => {
  it.each<[string, (seen: Seen) => Fault | undefined]>([
    ['500 from the Hub', first(2, { status: 500 }, 'hub')],
    ['503 from where the contents are', first(3, { status: 503 })],
    ['a connection cut in the middle', first(5, { cutAfter: 30_000 })],
    ['a connection cut before the first byte', first(2, { cutAfter: 0 })],
  ])('%s', async (_, fault) => {
    for (const cache of [true, false]) {
      const place = await hubWith();
      place.hub.fault = fault;
      await success(place, { cache });
    }
  });

  it('an address that has expired', async () => {
    const place = await hubWith();
    let count = 0;
    place.hub.fault = ({ host }) => (host === 'content' && count++ === 1 ? { status: 403 } : undefined);
    await success(place, { cache: false });
    expect(place.hub.fetched('model.safetensors').filter(({ host }) => host === 'hub')).toHaveLength(2);
  });

  it('but not one that was never accepted: who refuses is named', async () => {
    const place = await hubWith();
    place.hub.fault = onContent({ status: 403 });
    expect((await failure(place)).message).toMatch(/: localhost:\d+ answers 403 \(the Hub sent us there/);
  });

  it('429: not before the server allows it', async () => {
    const place = await hubWith();
    place.hub.fault = first(1, { status: 429, headers: { 'retry-after': '1' } }, 'hub');
    const timers = vi.spyOn(globalThis, 'setTimeout');
    await success(place);
    const waits = timers.mock.calls.map(([, ms]) => ms);
    timers.mockRestore();
    expect(waits).toContain(1000);
  });

  it('429 for longer than anyone waits: the time is named', async () => {
    const place = await hubWith();
    place.hub.fault = always({ status: 429, headers: { 'retry-after': '4000' } });
    expect((await failure(place)).message).toMatch(/429 Too Many Requests; it asks to wait 4000 s/);
    expect(place.hub.seen).toHaveLength(1);
  });

  it('a server that says nothing', async () => {
    const place = await hubWith();
    vi.stubEnv('HF_HUB_DOWNLOAD_TIMEOUT', '0.2');
    place.hub.fault = first(1, { silent: true });
    await success(place);
    place.hub.fault = always({ silent: true });
    expect((await failure(place, { output: join(place.out, 'n.cflow') })).message).toMatch(
      /silent for 0\.2 s, 7 times/,
    );
  });

  it('but not an answer without an end', async () => {
    const place = await hubWith();
    place.hub.fault = always({ body: Buffer.alloc(65 * 1024 * 1024, 32) });
    const { code, message } = await failure(place);
    expect(code).toBe('LIMIT_EXCEEDED');
    expect(message).toContain('more than 67108864 bytes (check HF_ENDPOINT');
  });

  it('but not a server that only ever gives a little and hangs up', async () => {
    const place = await hubWith();
    place.hub.fault = onContent({ cutAfter: 100 });
    expect((await failure(place)).message).toContain('the connection broke');
    expect(place.hub.seen.length).toBeLessThan(20);
  });
});

describe('contents that are not what the listing says', () => {
  it('another file under the same name, by its hash', async () => {
    const place = await hubWith();
    const model = place.hub.repos[REPO]!.files['model.safetensors']!;
    const wrong = Buffer.from(model);
    wrong[wrong.length - 1]! ^= 1;
    const headers = { 'content-range': `bytes 0-${wrong.length - 1}/${wrong.length}` };
    place.hub.fault = ({ host, range }) =>
      host === 'content' && range !== 'bytes=0-131071' ? { body: wrong, status: 206, headers } : undefined;
    expect(await failure(place)).toMatchObject({
      code: 'VERIFY_FAILED',
      message: expect.stringMatching(
        /model\.safetensors: SHA-256 is [0-9a-f]{64}, the Hub says [0-9a-f]{64}/,
      ),
    });
    expect(await tree(place.cached('blobs'))).toHaveLength(1);
  });

  it('a small file, by the hash that git has of it', async () => {
    const place = await hubWith();
    const body = Buffer.from(place.hub.repos[REPO]!.files['config.json']!);
    body[2] = 0x7a;
    place.hub.fault = ({ path }) => (path.endsWith('config.json') ? { body } : undefined);
    for (const cache of [true, false]) {
      expect(await failure(place, { cache })).toMatchObject({
        code: 'VERIFY_FAILED',
        message: expect.stringContaining('config.json: git SHA-1 is'),
      });
    }
  });

  it('an ETag that changes in the middle', async () => {
    const place = await hubWith();
    let count = 0;
    place.hub.fault = ({ host }) => (host === 'content' && count++ > 0 ? { etag: '"new"' } : undefined);
    expect(await failure(place, { cache: false })).toMatchObject({
      code: 'VERIFY_FAILED',
      message: expect.stringMatching(/ETag "content-137915", now "new"/),
    });
  });

  it.each([
    ['hash', { 'x-linked-etag': `"${'0'.repeat(64)}"` }, 'X-Linked-Etag'],
    ['size', { 'x-linked-size': '5' }, 'X-Linked-Size'],
    ['commit', { 'x-repo-commit': '1'.repeat(40) }, 'X-Repo-Commit'],
  ])('a redirect that speaks of another %s', async (_, headers, named) => {
    const place = await hubWith();
    place.hub.fault = ({ path }) =>
      path.includes('/resolve/') && path.endsWith('model.safetensors')
        ? { status: 302, headers: { location: 'http://127.0.0.1:1/', ...headers } }
        : undefined;
    expect(await failure(place)).toMatchObject({
      code: 'VERIFY_FAILED',
      message: expect.stringContaining(named),
    });
  });

  it('a range other than the one asked for', async () => {
    const place = await hubWith();
    place.hub.fault = onContent({
      body: Buffer.alloc(10),
      status: 206,
      headers: { 'content-range': 'bytes 0-9/10' },
    });
    expect(await failure(place)).toMatchObject({
      code: 'VERIFY_FAILED',
      message: expect.stringContaining('bytes 0-9/10'),
    });
  });

  it('no ranges at all: enough for the cache, refused past it', async () => {
    const place = await hubWith({ ...llamaFiles({ ...RAGGED, vocab: 2000 }) });
    place.hub.fault = onContent({ whole: true });
    expect(await failure(place, { cache: false })).toMatchObject({ code: 'UNSUPPORTED' });
  });
});

describe('names from elsewhere', () => {
  it.each([
    'hf:',
    'hf:/',
    'hf:a/',
    'hf:/b',
    'hf:a/b/c',
    'hf:../b',
    'hf:a/..',
    'hf:a/.b',
    'hf:-a/b',
    'hf:a/b.',
    'hf:a--b/c',
    'hf:a/b\\c',
    'hf:a/b c',
    'hf:a/b\0',
    'hf:a/b@',
    'hf:a/b@../x',
    'hf:a/b@x/../y',
    'hf:a/b@/x',
    'hf:a/b@x//y',
    'hf:a/b@-x',
    'hf:a/b@x\\y',
    'hf:a/b@x y',
    'hf:a/b@.x',
    'hf:a/b@x..y',
    `hf:a/b@${'x'.repeat(256)}`,
    'hf:a/b?x=1',
    'hf:a/b#c',
    'hf:a/b@x?y',
    `hf:${'a'.repeat(97)}/b`,
  ])('%j is refused', (source) => {
    expect(() => parseHubName(source)).toThrow(/is not the name of a (repository|revision)/);
  });

  it.each([
    ['hf:gpt2', 'gpt2', 'main'],
    ['hf:Qwen/Qwen3-1.7B', 'Qwen/Qwen3-1.7B', 'main'],
    ['hf:a/b_c.d@refs/pr/12', 'a/b_c.d', 'refs/pr/12'],
    ['hf:constructor/toString@v1.0+x', 'constructor/toString', 'v1.0+x'],
  ])('%s', (source, repo, revision) => {
    expect(parseHubName(source)).toEqual({ repo, revision });
  });

  it('paths of a listing and of an index lead nowhere else', async () => {
    const files = {
      ...llamaFiles(),
      '../../../../escape': 'x',
      __proto__: 'x',
      constructor: 'x',
      '/etc/x': 'x',
    };
    const place = await hubWith(files);
    await success(place);
    expect(await tree(place.home)).toEqual(
      expect.arrayContaining(['config.json', 'main', 'model.safetensors']),
    );
    expect(await tree(place.home)).toHaveLength(5);
    const index = { weight_map: { 'lm_head.weight': '../../../../../../etc/passwd.safetensors' } };
    const other = await hubWith({
      'config.json': llamaConfig(RAGGED),
      'model.safetensors.index.json': index,
    });
    expect(await failure(other)).toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining('passwd'),
    });
  });

  it.each([
    ['an id with a path in it', (entry: object) => ({ ...entry, oid: '../../../../x' })],
    [
      'a hash with a path in it',
      (entry: object) => ({ ...entry, lfs: { oid: '../x', size: 1, pointerSize: 1 } }),
    ],
    ['a size below zero', (entry: object) => ({ ...entry, size: -1 })],
    ['no path', (entry: object) => ({ ...entry, path: undefined })],
  ])('%s in a listing', async (_, relist) => {
    const place = await hubWith();
    place.hub.relist = relist;
    expect(await failure(place)).toMatchObject({
      code: 'FORMAT_INVALID',
      message: expect.stringContaining('is HF_ENDPOINT the address of a Hub?'),
    });
  });

  it('a commit with a path in it, and a server that is no Hub', async () => {
    const place = await hubWith(llamaFiles(), { commit: '../../x' });
    expect(await failure(place)).toMatchObject({ code: 'FORMAT_INVALID' });
    place.hub.fault = always({ body: Buffer.from('<html>') });
    expect(await failure(place)).toMatchObject({ code: 'FORMAT_INVALID' });
    vi.stubEnv('HF_ENDPOINT', 'file:///etc');
    expect(await failure(place)).toMatchObject({ code: 'USAGE' });
  });

  it('a cache that is a symbolic link is used, through its links within', async () => {
    const place = await hubWith();
    await mkdir(join(place.out, 'elsewhere'));
    await symlink(join(place.out, 'elsewhere'), place.home);
    await success(place);
    expect(await tree(join(place.out, 'elsewhere'))).toHaveLength(5);
    expect((await lstat(place.home)).isSymbolicLink()).toBe(true);
    place.hub.seen.length = 0;
    await success(place, { output: join(place.out, 'n.cflow') });
    expect(place.hub.seen).toHaveLength(2);
  });

  it('a file that a symbolic link in the cache replaced is found out by its hash', async () => {
    const place = await hubWith();
    await success(place);
    const model = place.hub.repos[REPO]!.files['model.safetensors']!;
    const other = Buffer.from(model);
    other[other.length - 1]! ^= 1;
    await writeFile(join(place.out, 'other'), other);
    const link = place.cached('snapshots', COMMIT, 'model.safetensors');
    await unlink(link);
    await symlink(join(place.out, 'other'), link);
    const change = { output: join(place.out, 'n.cflow') };
    expect(await failure(place, change)).toMatchObject({ code: 'VERIFY_FAILED' });
  });
});
