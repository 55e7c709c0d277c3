/** The examples, as the README tells people to run them. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { convert } from '@cflow/convert';
import { chromium } from 'playwright-core';
import { expect, it, onTestFinished } from 'vitest';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const text = (path: string) => readFile(join(ROOT, path), 'utf8');

it('convert and generate: twenty lines, the same in the README, with the output that it shows', async () => {
  const path = 'examples/convert-and-generate.mjs';
  const source = await text(path);
  expect(source.trim().split('\n').filter(Boolean).length).toBeLessThanOrEqual(20);
  const readme = await text('README.md');
  expect(readme).toContain(`\`\`\`js\n${source}\`\`\`\n`);
  const { stdout } = await promisify(execFile)(process.execPath, [path], { cwd: ROOT });
  const shown = stdout.trimEnd().replace(/^/gm, '    ');
  expect(readme).toContain(`prints\n\n${shown}\n`);
});

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

it('the header over HTTP ranges, in a browser: what cflow-inspect says, from a fraction of the bytes', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'cflow-browser-'));
  onTestFinished(() => rm(directory, { recursive: true }));
  const output = join(directory, 'stories.cflow');
  await convert({ source: join(ROOT, 'models/stories-arch2_4'), output });

  const { serve } = (await import(join(ROOT, 'examples/browser/serve.mjs'))) as {
    serve: (models: string) => Promise<Server>;
  };
  const server = await serve(directory);
  onTestFinished(() => {
    server.close();
  });
  const site = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--disable-background-networking'];
  const browser = await chromium.launch({ executablePath: browserPath(), args, timeout: PATIENCE });
  onTestFinished(() => browser.close());
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  const problems: string[] = [];
  page.on('pageerror', (error) => problems.push(error.message));
  await page.goto(`${site}/examples/browser/?file=/models/stories.cflow`);
  const shown = page.locator('#report', { hasText: 'fetched' });
  await shown.waitFor().catch(() => expect(problems).toEqual([]));
  const report = (await shown.textContent())!;
  const inspect = [join(ROOT, 'packages/inspect/bin/cflow-inspect.js'), 'stories.cflow'];
  const { stdout } = await promisify(execFile)(process.execPath, inspect, { cwd: directory });
  const [head, fetched] = report.split('\nfetched ');
  expect(head!.replace('/models/stories.cflow', 'stories.cflow')).toBe(stdout);
  const [, read, size] = /^(\d+) of (\d+) bytes$/.exec(fetched!)!.map(Number);
  expect(size).toBe(2_662_656);
  expect(read).toBeLessThan(size! / 8);
});
