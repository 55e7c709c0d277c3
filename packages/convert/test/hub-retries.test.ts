/** Another attempt at the Hub is no secret: the library says so to its caller, the command on stderr. */
import { join } from 'node:path';
import { describe, expect, it, vi } from 'vitest';
import { convert } from '../src/convert.js';
import { dryRun } from '../src/dry-run.js';
import type { Retry } from '../src/hub/client.js';
import { retryNotice } from '../src/retry-notice.js';
import { run } from './cli-fixture.js';
import { first, hubWith, REPO } from './hub-fixture.js';

describe('another attempt is announced', () => {
  it('to the caller, before each wait, of a conversion and of a dry run', async () => {
    for (const command of [convert, dryRun]) {
      const place = await hubWith();
      place.hub.fault = first(2, { status: 503, headers: { 'retry-after': '0' } }, 'hub');
      const retries: Retry[] = [];
      const output = join(place.out, 'm.cflow');
      await command({ source: `hf:${REPO}`, output, threads: 1, onRetry: (retry) => retries.push(retry) });
      const problem = 'the server answers 503 Service Unavailable';
      expect(retries).toEqual([2, 3].map((attempt) => ({ problem, attempt, attempts: 7, waitMs: 0 })));
    }
  });

  it('by the command once on stderr, and not at all where all is well or with --json', async () => {
    const place = await hubWith();
    // What is refused is hung up on: a request left open would keep the process for as long as it may be silent.
    vi.stubEnv('HF_HUB_DOWNLOAD_TIMEOUT', '600');
    for (const [faults, flags, lines] of [
      [2, [], ['the server answers 503 Service Unavailable; up to 7 attempts, with waits that double']],
      [2, ['--json'], []],
      [0, [], []],
    ] as const) {
      place.hub.fault = first(faults, { status: 503, headers: { 'retry-after': '0' } }, 'hub');
      const { code, stderr } = await run(`hf:${REPO}`, '--dry-run', ...flags);
      expect([code, stderr.split('\n').slice(0, -1)]).toEqual([0, lines]);
    }
  });

  it('on a terminal by a line that changes, and goes when all is done', () => {
    const written: string[] = [];
    const terminal = { isTTY: true, write: (text: string) => written.push(text) > 0 };
    const { show, stop } = retryNotice(false, terminal);
    stop();
    expect(written).toEqual([]);
    for (const attempt of [2, 3]) show({ problem: 'no connection', attempt, attempts: 7, waitMs: 640 });
    stop();
    const clear = '\r\x1b[K';
    const lines = [2, 3].map((attempt) => `no connection; attempt ${attempt} of 7 in 0.6 s`);
    expect(written).toEqual([...lines.map((line) => clear + line), clear]);
  });
});
