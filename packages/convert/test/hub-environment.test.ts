/** What the environment says of the Hub: as huggingface_hub takes it. Values in the table are what 1.33.0 gives. */
import { createHash } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { createServer, request as forward } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { homedir, hostname } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { CflowError } from '@cflow/format';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { convert } from '../src/convert.js';
import { dryRun } from '../src/dry-run.js';
import { hubEnvironment } from '../src/hub/environment.js';
import { llamaFiles, run } from './cli-fixture.js';
import { asBytes, hubWith, REPO, tree } from './hub-fixture.js';

const HOST = 'hub.example';
const VARIABLES = [
  ...['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN', 'HF_TOKEN_PATH', 'HF_HOME', 'HF_HUB_CACHE', 'HF_ENDPOINT'],
  ...['HUGGINGFACE_HUB_CACHE', 'XDG_CACHE_HOME', 'HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE'],
  ...['http_proxy', 'https_proxy', 'all_proxy', 'no_proxy'].flatMap((name) => [name, name.toUpperCase()]),
];
beforeEach(() => {
  for (const name of VARIABLES) vi.stubEnv(name, undefined);
});
afterEach(() => vi.unstubAllEnvs());

async function failure(work: Promise<unknown>): Promise<CflowError> {
  const error = await work.then(
    () => undefined,
    (reason) => reason,
  );
  expect(error).toBeInstanceOf(CflowError);
  return error;
}

describe('directories', () => {
  const home = homedir();
  it.each<[Record<string, string>, string]>([
    [{}, `${home}/.cache/huggingface/hub`],
    [{ XDG_CACHE_HOME: '/x' }, '/x/huggingface/hub'],
    [{ HF_HOME: '~/hf' }, `${home}/hf/hub`],
    [{ HF_HOME: '~' }, `${home}/hub`],
    [{ HF_HOME: '/a~/b', HF_HUB_CACHE: '' }, '/a~/b/hub'],
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of a variable
    [{ PLACE: '/p', HF_HUB_CACHE: '$PLACE/x/${PLACE}y' }, '/p/x//py'],
    [{ HF_HUB_CACHE: '$NOT_SET_ANYWHERE/x' }, '$NOT_SET_ANYWHERE/x'],
    [{ HUGGINGFACE_HUB_CACHE: '/old', HF_HOME: '/h' }, '/old'],
    [{ HUGGINGFACE_HUB_CACHE: '/old', HF_HUB_CACHE: '/new' }, '/new'],
  ])('%o: %s', async (variables, expected) => {
    for (const [name, value] of Object.entries(variables)) vi.stubEnv(name, value);
    expect((await hubEnvironment()).cacheDir).toBe(expected);
  });
});

describe('a token', () => {
  const SECRET = 'hf_SECRETsecret';

  it.each(['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'])(
    '%s: white space around it does not count',
    async (name) => {
      vi.stubEnv(name, ` ${SECRET}\n`);
      expect((await hubEnvironment()).token).toBe(SECRET);
    },
  );

  it.each([
    ['a line break', `${SECRET}\n${SECRET}`, 'white space or a line break inside'],
    ['a carriage return', `${SECRET}\r\n${SECRET}`, 'white space or a line break inside'],
    ['a space', `${SECRET} x`, 'white space or a line break inside'],
    ['a letter that no header holds', `${SECRET}ü`, 'characters outside of ASCII'],
  ])('with %s is refused before any request, and is nowhere in the error', async (_, token, problem) => {
    const place = await hubWith();
    const path = join(place.out, 'token');
    await writeFile(path, token);
    for (const [name, value, where] of [
      ['HF_TOKEN', token, 'HF_TOKEN'],
      ['HF_TOKEN_PATH', path, path],
    ] as const) {
      vi.stubEnv('HF_TOKEN', undefined);
      vi.stubEnv(name, value);
      const error = await failure(dryRun({ source: `hf:${REPO}` }));
      expect([error.code, error.problem]).toEqual(['USAGE', `the token has ${problem}`]);
      expect(error.message).toContain(where);
      expect(inspect(error, { depth: 9, showHidden: true })).not.toContain('SECRET');
    }
    expect(place.hub.seen).toEqual([]);
  });

  it('is in no output of the command, whatever goes wrong', async () => {
    const place = await hubWith();
    vi.stubEnv('HF_TOKEN', SECRET);
    for (const status of [403, 500]) {
      place.hub.fault = () => ({ status, headers: { 'retry-after': '1000' } });
      const { code, stdout, stderr } = await run(`hf:${REPO}`, '--dry-run', '--json');
      expect([code, stdout]).toEqual([3, '']);
      expect(stderr).not.toContain('SECRET');
    }
    expect(place.hub.seen.every(({ authorization }) => authorization === `Bearer ${SECRET}`)).toBe(true);
  });
});

it('an endpoint with a password is refused without it', async () => {
  vi.stubEnv('HF_ENDPOINT', 'https://me:SECRET@hub.example');
  const error = await failure(hubEnvironment());
  expect(error.code).toBe('USAGE');
  expect(error.message).toMatch(/HF_ENDPOINT: holds a user name or password/);
  expect(inspect(error)).not.toContain('SECRET');
});

/** A proxy that leads `hub.example` to `port` on this machine, and other hosts to themselves; notes what it is asked. */
async function proxyTo(port: number): Promise<{ address: string; asked: string[] }> {
  const asked: string[] = [];
  const placeOf = (url: URL) =>
    url.hostname === HOST ? { host: '127.0.0.1', port } : { host: url.hostname, port: Number(url.port) };
  const server = createServer((incoming, outgoing) => {
    const url = new URL(incoming.url!);
    asked.push(url.host);
    const { method, headers } = incoming;
    const path = `${url.pathname}${url.search}`;
    const onward = forward({ ...placeOf(url), method, path, headers }, (answer) => {
      outgoing.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(outgoing);
    });
    incoming.pipe(onward);
  });
  server.on('connect', ({ url }, socket) => {
    asked.push(url!);
    const onward = connect(placeOf(new URL(`http://${url}`)), () => {
      socket.write('HTTP/1.1 200 Connection established\r\n\r\n');
      onward.pipe(socket).pipe(onward);
    });
    for (const one of [onward, socket]) one.on('error', () => socket.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return { address: `127.0.0.1:${(server.address() as AddressInfo).port}`, asked };
}

describe('proxies', () => {
  it.each(['HTTP_PROXY', 'http_proxy', 'ALL_PROXY'])(
    '%s leads to the Hub, with and without a scheme',
    async (name) => {
      const place = await hubWith();
      const { address, asked } = await proxyTo(Number(new URL(place.hub.endpoint).port));
      vi.stubEnv('HF_ENDPOINT', `http://${HOST}`);
      for (const value of [`http://${address}`, address]) {
        asked.length = 0;
        vi.stubEnv(name, value);
        expect((await dryRun({ source: `hf:${REPO}` })).weightsPresent).toBe(true);
        expect(asked.some((host) => host.startsWith(HOST))).toBe(true);
      }
    },
  );

  it('NO_PROXY: the host is reached directly', async () => {
    await hubWith();
    const { address, asked } = await proxyTo(1);
    vi.stubEnv('HTTP_PROXY', `http://${address}`);
    vi.stubEnv('NO_PROXY', 'other.example, 127.0.0.1,localhost');
    await dryRun({ source: `hf:${REPO}` });
    expect(asked).toEqual([]);
  });

  it('one that does not answer is named, without its password', async () => {
    await hubWith();
    vi.stubEnv('HTTP_PROXY', 'http://me:SECRET@127.0.0.1:1');
    const { message } = await failure(dryRun({ source: `hf:${REPO}` }));
    expect(message).toMatch(/HTTP_PROXY names 127\.0\.0\.1:1\): ECONNREFUSED, 3 times/);
    expect(message).not.toContain('SECRET');
  });

  it.each(['socks5://127.0.0.1:1080', 'http://', '::'])('%s is refused by name', async (value) => {
    await hubWith();
    vi.stubEnv('HTTPS_PROXY', value);
    const { code, message } = await failure(dryRun({ source: `hf:${REPO}` }));
    expect([code, message.split(':')[0]]).toEqual(['USAGE', 'HTTPS_PROXY']);
  });
});

it('a host that no name server knows is not asked for again', async () => {
  const { out } = await hubWith();
  vi.stubEnv('HF_ENDPOINT', 'http://cflow-test.invalid');
  const retries: unknown[] = [];
  const source = `hf:${REPO}`;
  const output = join(out, 'm.cflow');
  const { code, message } = await failure(
    convert({ source, output, onRetry: (retry) => retries.push(retry) }),
  );
  expect([code, retries]).toEqual(['NOT_READABLE', []]);
  expect(message).toMatch(
    /no connection to cflow-test\.invalid: (?:ENOTFOUND|EAI_AGAIN) \(check the network/,
  );
});

it('two conversions of one repository at once both succeed, and fetch each file once', async () => {
  const place = await hubWith();
  const source = `hf:${REPO}`;
  const outputs = ['a.cflow', 'b.cflow'].map((name) => join(place.out, name));
  const [a, b] = await Promise.all(outputs.map((output) => convert({ source, output, threads: 1 })));
  expect(a!.fileBytes).toBe(b!.fileBytes);
  expect(place.hub.fetched('tokenizer.json').length).toBeLessThanOrEqual(1);
  expect((await tree(place.cached('blobs'))).filter((name) => /lock|incomplete/.test(name))).toEqual([]);
});

it('a lock of a process that has ended holds nobody up', async () => {
  const place = await hubWith();
  const config = asBytes(llamaFiles())['config.json']!;
  const oid = createHash('sha1').update(`blob ${config.length}\0`).update(config).digest('hex');
  await mkdir(place.cached('blobs'), { recursive: true });
  const gone = { pid: process.pid, host: hostname(), started: 'another' };
  await writeFile(place.cached('blobs', `${oid}.cflow-lock`), JSON.stringify(gone));
  await convert({ source: `hf:${REPO}`, output: join(place.out, 'm.cflow'), threads: 1 });
  expect(await tree(place.cached('blobs'))).toContain(oid);
});

it('the output is looked at before anything is fetched', async () => {
  const place = await hubWith();
  const source = `hf:${REPO}`;
  await writeFile(join(place.out, 'there.cflow'), 'mine');
  await mkdir(join(place.out, 'dir.cflow'));
  for (const [output, expected] of [
    [join(place.out, 'there.cflow'), 'OUTPUT_EXISTS'],
    [join(place.out, 'none', 'm.cflow'), 'WRITE_FAILED'],
    [join(place.out, 'there.cflow', 'm.cflow'), 'WRITE_FAILED'],
  ] as const) {
    expect((await failure(convert({ source, output }))).code).toBe(expected);
  }
  expect(place.hub.seen).toEqual([]);
});
