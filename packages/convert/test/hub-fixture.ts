import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished, vi } from 'vitest';
import { llamaFiles } from './cli-fixture.js';
import { FakeHub, type FakeRepo, type Fault, type Seen } from './hub-server.js';

export const COMMIT = 'c0ffee'.padEnd(40, '0');
export const REPO = 'acme/tiny';

/** Files as a server has them. */
export function asBytes(files: Record<string, Uint8Array | string | object>): Record<string, Uint8Array> {
  const bytes = (content: Uint8Array | string | object) =>
    content instanceof Uint8Array
      ? content
      : new TextEncoder().encode(typeof content === 'string' ? content : JSON.stringify(content));
  return Object.fromEntries(Object.entries(files).map(([name, content]) => [name, bytes(content)]));
}

export interface Place {
  hub: FakeHub;
  /** HF_HOME. */
  home: string;
  /** Where outputs go. */
  out: string;
  /** Of the one repository in the cache. */
  cached(...path: string[]): string;
}

/** A hub with one repository, an empty HF_HOME, and the environment set to both; gone when the test ends. */
export async function hubWith(
  files: Record<string, Uint8Array | string | object> = llamaFiles(),
  more: Partial<FakeRepo> = {},
): Promise<Place> {
  const hub = await FakeHub.start();
  hub.repos[REPO] = { commit: COMMIT, files: asBytes(files), ...more };
  const root = await mkdtemp(join(tmpdir(), 'cflow-hub-'));
  const home = join(root, 'home');
  vi.stubEnv('HF_ENDPOINT', `${hub.endpoint}/`);
  vi.stubEnv('HF_HOME', home);
  for (const name of [
    'HF_TOKEN',
    'HF_TOKEN_PATH',
    'HF_HUB_CACHE',
    'HUGGINGFACE_HUB_CACHE',
    'HF_HUB_OFFLINE',
  ]) {
    vi.stubEnv(name, undefined);
  }
  onTestFinished(async () => {
    vi.unstubAllEnvs();
    await hub.stop();
    await rm(root, { recursive: true });
  });
  const cached = (...path: string[]) => join(home, 'hub', 'models--acme--tiny', ...path);
  return { hub, home, out: join(root), cached };
}

export async function tree(dir: string): Promise<string[]> {
  const entries = await readdir(dir, { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => !entry.isDirectory())
    .map(({ name }) => name)
    .sort();
}

/** A fault for the first so many requests of a kind. */
export function first(count: number, answer: Fault, host: Seen['host'] = 'content') {
  let left = count;
  return (seen: Seen) => (seen.host === host && left-- > 0 ? answer : undefined);
}
