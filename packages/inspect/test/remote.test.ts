/** Files over HTTP: few requests, their bytes, and what servers do wrong. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { makeConfig, makeModel } from '@cflow/test-kit/models';
import { afterEach, expect, it } from 'vitest';
import { main } from '../src/cli.js';
import { remoteUrl } from '../src/remote.js';

let server: Server | undefined;
afterEach(() => server?.close());

interface Asked {
  readonly url: string;
  readonly requests: string[];
  bytes: number;
}

async function serve(file: Uint8Array, { ranges = true } = {}): Promise<Asked> {
  const requests: string[] = [];
  const asked = { url: '', requests, bytes: 0 };
  server = createServer(({ headers }, response) => {
    requests.push(headers.range ?? 'all');
    const [, from, to] = /bytes=(\d+)-(\d+)/.exec(headers.range ?? '') ?? [];
    if (!ranges || from === undefined) return void response.writeHead(200).end(file);
    const body = file.subarray(Number(from), Number(to) + 1);
    asked.bytes += body.length;
    const range = `bytes ${from}-${Number(from) + body.length - 1}/${file.length}`;
    response.writeHead(206, { 'content-range': range, etag: '"1"' }).end(body);
  });
  await new Promise<void>((done) => server!.listen(0, done));
  asked.url = `http://localhost:${(server.address() as AddressInfo).port}/m.cflow`;
  return asked;
}

async function run(...argv: string[]) {
  const [out, err]: [string[], string[]] = [[], []];
  const code = await main(argv, {
    out: async (text) => void out.push(text),
    err: async (text) => void err.push(text),
  });
  return { code, out: out.join(''), err: err.join('') };
}

const config = makeConfig({ layers: 40, experts: 16 });
const tokenizer = { tokenizerJson: 'x'.repeat(300_000), vocabSize: 9 };
const metadata = {
  config,
  tokenizer,
  source: { name: 'x', files: [] },
  converter: { version: '0', options: {} },
};

it.each(['cflow', 'vflow'] as const)('opens a .%s of version 6 with two requests', async (container) => {
  const { bytes } = await makeModel(config, 'q4_0', container, { version: 6, metadata });
  const asked = await serve(bytes);
  const { code, out, err } = await run(asked.url, '--json');
  expect(err).toBe('');
  expect(code).toBe(0);
  const report = JSON.parse(out);
  expect(report.experts).toHaveLength(640);
  expect(report.origin.tokenizer).toEqual({});
  expect(asked.requests).toHaveLength(2);
  expect(asked.bytes).toBe(report.file.headBytes);
  expect(asked.bytes).toBeLessThan(bytes.length / 10);
});

it('says what a server does wrong', async () => {
  const { bytes } = await makeModel(makeConfig(), 'q4_0', 'cflow', { version: 6 });
  const asked = await serve(bytes, { ranges: false });
  const { code, err } = await run(asked.url);
  expect(code).toBe(3);
  expect(err).toContain('the server ignores ranges and would send the whole file (download it first)');
});

it('knows files of repositories from repositories', () => {
  expect(remoteUrl('hf:acme/tiny/dir/m.cflow')).toBe(
    'https://huggingface.co/acme/tiny/resolve/main/dir/m.cflow',
  );
  expect(remoteUrl('hf:acme/tiny')).toBeUndefined();
  expect(remoteUrl('m.cflow')).toBeUndefined();
});
