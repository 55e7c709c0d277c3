/** What a signal leaves of a command: its exit code, and nothing else. */
import { execFileSync, spawn } from 'node:child_process';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { synthesize } from '../src/synth/checkpoint.js';
import { modelOf } from '../src/synth/geometry.js';
import { synthesizeModel } from '../src/synth/model.js';

const CLI = fileURLToPath(new URL('../bin/cflow-bench.js', import.meta.url));
const RESOURCES = new URL('../dist/runner/resources.js', import.meta.url).href;
let work: string;

beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'cflow-signals-test-'));
  const geometry = { ...modelOf('arch2_4', { layers: 4 }, 1), vocabSize: 300 };
  await synthesizeModel({
    target: join(work, 'm.cflow'),
    format: 'cflow',
    dtype: 'q4_0',
    seed: 1,
    geometry,
  });
  const checkpoint = { geometry: 'llama-tiny', bytes: 2e7, shards: 1, dtype: 'bf16', seed: 1 } as const;
  await synthesize({ directory: join(work, 'checkpoint'), ...checkpoint });
});
afterAll(() => rm(work, { recursive: true }));

/** Processes that have not ended, with their parents and groups. */
function processes() {
  const lines = execFileSync('ps', ['-A', '-o', 'pid=,ppid=,pgid=,stat='], { encoding: 'utf8' }).split('\n');
  return lines
    .map((line) => line.trim().split(/\s+/))
    .filter(([pid, , , state]) => pid && !state?.startsWith('Z'))
    .map(([pid, parent, group]) => ({ pid: Number(pid), parent: Number(parent), group: Number(group) }));
}

function descendants(of: number): number[] {
  const all = processes();
  const found = [of];
  for (const pid of found)
    found.push(...all.filter(({ parent }) => parent === pid).map((child) => child.pid));
  return found.slice(1);
}

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 30_000; !(await condition()); await sleep(20)) {
    if (Date.now() > end) throw new Error('it does not come to that');
  }
}

async function start(args: readonly string[]) {
  const temporary = await mkdtemp(join(work, 'tmp-'));
  const child = spawn(process.execPath, args, {
    cwd: work,
    env: { ...process.env, TMPDIR: temporary },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const messages = text(child.stderr);
  const ended = new Promise<number | string | null>((resolve) =>
    child.once('close', (code, signal) => resolve(signal ?? code)),
  );
  return {
    pid: child.pid!,
    temporary,
    messages,
    ended,
    kill: (signal: NodeJS.Signals) => child.kill(signal),
  };
}

/** Whether it has come to where a signal has something to leave. */
const holdsFolder = async ({ temporary }: { temporary: string }) => (await readdir(temporary)).length > 0;
const hasChild = ({ pid }: { pid: number }) => descendants(pid).length > 0;
/** A checkpoint is written under another name. */
const partial = async () => (await readdir(work)).some((name) => name.endsWith('.partial'));

describe('a command that is told to end', { timeout: 60_000 }, () => {
  it.each([
    ['storage m.cflow --runs 1000', 'SIGINT', holdsFolder],
    ['convert checkpoint --runs 1000', 'SIGTERM', hasChild],
    ['overlap m.cflow --runs 1000 --warmup 1000', 'SIGINT', hasChild],
    ['decode m.cflow --runs 1000 --prefill 16', 'SIGHUP', hasChild],
    ['residual m.cflow --tokens 100000', 'SIGINT', holdsFolder],
    ['synth big --geometry llama-tiny --bytes 2GB', 'SIGTERM', partial],
  ] as const)('%s: %s', async (line, signal, ready) => {
    const command = await start([CLI, ...line.split(' ')]);
    await until(() => ready(command));
    await sleep(200);
    const children = descendants(command.pid);
    command.kill(signal);
    expect([await command.ended, await command.messages]).toEqual([130, 'cflow-bench: error: interrupted\n']);
    expect(await readdir(command.temporary)).toEqual([]);
    expect((await readdir(work)).filter((name) => /partial|big/.test(name))).toEqual([]);
    await until(
      () => !processes().some(({ pid, group }) => children.some((id) => [pid, group].includes(id))),
    );
    const groups = await readdir('/sys/fs/cgroup/memory').catch(() => []);
    expect(groups.filter((name) => name.startsWith(`cflow-bench-${command.pid}-`))).toEqual([]);
  });
});

describe('work that goes on regardless', { timeout: 30_000 }, () => {
  const script = `
    const { interruptible, interruption, spawnHeld, temporaryFolder } = await import(${JSON.stringify(RESOURCES)});
    await interruptible(() =>
      temporaryFolder(process.env.TMPDIR, 'x', () => {
        spawnHeld('sleep', ['100'], { stdio: 'ignore' });
        return new Promise(() => setInterval(() => undefined, 1000));
      }),
    ).catch((error) => process.exit(error.exitCode));`;

  it.each([
    ['is given up after three seconds', 1, 2500, 6000],
    ['ends at once at a second signal', 2, 0, 2000],
  ])('%s', async (_, signals, least, most) => {
    const running = await start(['--input-type=module', '--eval', script]);
    await until(async () => (await holdsFolder(running)) && hasChild(running));
    const children = descendants(running.pid);
    const from = Date.now();
    for (let i = 0; i < signals; i++) {
      running.kill('SIGINT');
      await sleep(200);
    }
    expect(await running.ended).toBe(130);
    expect(Date.now() - from).toBeGreaterThan(least);
    expect(Date.now() - from).toBeLessThan(most);
    expect(await readdir(running.temporary)).toEqual([]);
    await until(() => !processes().some(({ pid }) => children.includes(pid)));
  });
});
