/** The examples, as the README tells people to run them. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, symlink } from 'node:fs/promises';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text as collected } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { convert } from '@cflow/convert';
import { chromium } from 'playwright-core';
import { expect, it, onTestFinished } from 'vitest';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const run = promisify(execFile);
const text = (path: string) => readFile(join(ROOT, path), 'utf8');

it('the ten lines of the README are an example that passes strict TypeScript and generates text', async () => {
  const path = 'examples/convert-and-generate.mjs';
  const source = await text(path);
  expect(source.trim().split('\n').filter(Boolean).length).toBeLessThanOrEqual(12);
  expect(await text('README.md')).toContain(`\`\`\`ts\n${source}\`\`\`\n`);
  const strict = [
    '--strict',
    '--noUncheckedIndexedAccess',
    '--allowJs',
    '--checkJs',
    '--noEmit',
    '--types',
    'node',
  ];
  const tsc = join(ROOT, 'node_modules/typescript/bin/tsc');
  await run(process.execPath, [tsc, ...strict, '--module', 'nodenext', '--target', 'es2022', path], {
    cwd: ROOT,
  });
  const directory = await mkdtemp(join(tmpdir(), 'cflow-example-'));
  onTestFinished(() => rm(directory, { recursive: true }));
  await symlink(join(ROOT, 'models'), join(directory, 'models'));
  const { stdout } = await run(process.execPath, [join(ROOT, path)], { cwd: directory });
  expect(stdout).toContain('there was a little girl named Lily. She loved to play outside in the park.');
});

const SERVE = 'examples/browser/serve.mjs';

/** Milliseconds for each thing that a browser does: a busy machine is no failure. */
const PATIENCE = 100_000;

/** Debian's Chromium, or another. */
function browserPath(): string {
  const found = [process.env.CFLOW_CHROMIUM, '/usr/bin/chromium', '/usr/bin/google-chrome'].find(
    (path) => path && existsSync(path),
  );
  if (found) return found;
  throw new Error(
    'no Chromium: install one (apt-get install chromium), or say where it is in CFLOW_CHROMIUM',
  );
}

/** A page of a browser, on the site of a folder of models; `problems` are the exceptions that nobody caught. */
async function browse(models: string) {
  const { serve } = (await import(join(ROOT, SERVE))) as { serve: (models: string) => Promise<Server> };
  const server = await serve(models);
  onTestFinished(() => {
    server.close();
  });
  const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--disable-background-networking'];
  const browser = await chromium.launch({ executablePath: browserPath(), args, timeout: PATIENCE });
  onTestFinished(() => browser.close());
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  const problems: string[] = [];
  page.on('pageerror', (error) => problems.push(error.message));
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}/examples/browser/`;
  /** What the page shows once it shows more than that it works. */
  const report = async (query: string) => {
    await page.goto(address + query);
    const shown = page.locator('#report', { hasNotText: /^…$/ });
    await shown.waitFor().catch(() => expect(problems).toEqual([]));
    return (await shown.textContent())!;
  };
  return { report, problems };
}

it('the header over HTTP ranges, in a browser: what cflow-inspect says, from a fraction of the bytes', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'cflow-browser-'));
  onTestFinished(() => rm(directory, { recursive: true }));
  const output = join(directory, 'stories.cflow');
  await convert({ source: join(ROOT, 'models/stories-arch2_4'), output });

  const { report: shown } = await browse(directory);
  const report = await shown('?file=/models/stories.cflow');
  const inspect = [join(ROOT, 'packages/inspect/bin/cflow-inspect.js'), 'stories.cflow'];
  const { stdout } = await promisify(execFile)(process.execPath, inspect, { cwd: directory });
  const [head, fetched] = report.split('\nfetched ');
  expect(head!.replace('/models/stories.cflow', 'stories.cflow')).toBe(stdout);
  const [, read, size] = /^(\d+) of (\d+) bytes$/.exec(fetched!)!.map(Number);
  expect(size).toBe(2_662_656);
  expect(read).toBeLessThan(size! / 8);
});

it('the page says what is wrong instead of waiting for ever', async () => {
  const { report, problems } = await browse(join(ROOT, 'models/stories-arch2_4'));
  expect(await report('')).toContain('Add ?file=/models/NAME.cflow');
  expect(await report('?file=/models/none.cflow')).toContain('/models/none.cflow: the server answers 404');
  expect(await report('?file=/models/')).toContain('the server answers 404');
  expect(await report('?file=/models/tokenizer.json')).toMatch(/^error: .*magic/);
  expect(problems).toEqual([]);
});

it('the server says where it listens, and in one line why it does not', async () => {
  const start = (...args: string[]) => spawn(process.execPath, [SERVE, ...args], { cwd: ROOT });
  const first = start('models', '0');
  onTestFinished(() => void first.kill());
  const [line] = (await once(first.stdout, 'data')) as [Buffer];
  const [, port] =
    /^http:\/\/127\.0\.0\.1:(\d+)\/examples\/browser\/\?file=\/models\/NAME\.cflow, .*models\n$/.exec(
      String(line),
    )!;
  const config = await fetch(`http://127.0.0.1:${port}/models/stories-arch2_4/config.json`);
  expect(await config.json()).toMatchObject({ model_type: 'cflow' });

  const refused = async (...args: string[]) => {
    const child = start(...args);
    const [stderr, [code]] = await Promise.all([collected(child.stderr), once(child, 'close')]);
    return [code, stderr];
  };
  expect(await refused('models', port!)).toEqual([
    1,
    expect.stringMatching(/^serve: error: port \d+: .*\n$/),
  ]);
  expect(await refused('none')).toEqual([
    1,
    expect.stringMatching(/^serve: error: .*none: no such folder\n$/),
  ]);
  for (const wrong of [['models', 'x'], ['models', '65536'], ['--port']])
    expect(await refused(...wrong)).toEqual([2, expect.stringMatching(/^usage: .*\n$/)]);
});
