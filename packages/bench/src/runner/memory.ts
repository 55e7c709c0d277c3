/** Memory of a run: of this process, or of a memory cgroup (v1), which includes the page cache. */
import { readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { mkdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { errno } from '@cflow/format/node';
import { runChild } from './child.js';
import { hold } from './resources.js';

const ROOT = '/sys/fs/cgroup/memory';
/** A killed process leaves its cgroup with a delay. */
const TRIES = 50;
const BETWEEN_MS = 20;

export interface GroupUse {
  readonly limit: number;
  /** Peak bytes. */
  readonly most: number;
  readonly killed: boolean;
}

export class MemoryGroup {
  readonly folder: string;
  readonly #limit: number;
  readonly #release: () => void;
  private constructor(folder: string, limit: number) {
    this.folder = folder;
    this.#limit = limit;
    this.#release = hold(() => removeNow(folder));
  }

  /** Creates a cgroup, or returns why it cannot. @param limit bytes */
  static async create(name: string, limit: number, root = ROOT): Promise<MemoryGroup | string> {
    const folder = join(root, `cflow-bench-${process.pid}-${name}`);
    try {
      await mkdir(folder);
      await writeFile(join(folder, 'memory.limit_in_bytes'), `${limit}`);
      return new MemoryGroup(folder, limit);
    } catch (error) {
      await rmdir(folder).catch(() => undefined);
      return `cannot create a memory cgroup (v1): ${errno(error)}`;
    }
  }

  /** Usage of its processes. */
  async use(): Promise<GroupUse> {
    const read = (file: string) => readFile(join(this.folder, file), 'utf8');
    const kills = /oom_kill (\d+)/.exec(await read('memory.oom_control'))?.[1] ?? '0';
    return {
      limit: this.#limit,
      most: Number(await read('memory.max_usage_in_bytes')),
      killed: Number(kills) > 0,
    };
  }

  /** Removes it; its processes must have ended. */
  async remove(): Promise<void> {
    for (let tries = TRIES; ; tries--) {
      try {
        await rmdir(this.folder);
        this.#release();
        return;
      } catch (error) {
        if (tries === 0 || errno(error) !== 'EBUSY') throw error;
        await sleep(BETWEEN_MS);
      }
    }
  }
}

/** Like `remove`, synchronous, for process exit. */
function removeNow(folder: string): void {
  const clock = new Int32Array(new SharedArrayBuffer(4));
  for (let tries = TRIES; tries > 0; tries--) {
    try {
      rmdirSync(folder);
      return;
    } catch (error) {
      if (errno(error) !== 'EBUSY') return;
      Atomics.wait(clock, 0, 0, BETWEEN_MS);
    }
  }
}

/** Moves this process into a cgroup; memory that it already has is not counted there. */
export function joinGroup(folder: string): void {
  writeFileSync(join(folder, 'cgroup.procs'), `${process.pid}`);
}

/** A job under a memory cap. */
export interface GroupRun<T> {
  /** Undefined if the kernel killed it for its memory: a result, not an error. */
  readonly run: T | undefined;
  readonly group: GroupUse;
}

/** Runs a job of `child.ts` in a cgroup, then removes the cgroup. @throws CflowError as the job does */
export async function runInGroup<T>(
  group: MemoryGroup,
  name: string,
  job: unknown,
  environment?: Readonly<Record<string, string>>,
): Promise<GroupRun<T>> {
  try {
    const run = await runChild<T>(name, job, { environment, group: group.folder });
    return { run, group: await group.use() };
  } catch (error) {
    const use = await group.use();
    if (!use.killed) throw error;
    return { run: undefined, group: use };
  } finally {
    await group.remove();
  }
}

/**
 * Peak memory of this process, bytes: VmHWM, or ru_maxrss where there is no /proc, which
 * also counts memory of the parent before exec.
 */
export function peakBytes(): number {
  return statusBytes('VmHWM') ?? 1024 * process.resourceUsage().maxRSS;
}

/** A field of /proc/self/status, bytes; undefined if missing. */
export function statusBytes(field: string): number | undefined {
  try {
    const found = new RegExp(`${field}:\\s+(\\d+)`).exec(readFileSync('/proc/self/status', 'utf8'));
    return found ? 1024 * Number(found[1]) : undefined;
  } catch {
    return undefined;
  }
}
