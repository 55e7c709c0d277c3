/** A memory cgroup (v1) around one run: what it used at most, page cache included, and whether that killed it. */
import { rmdirSync, writeFileSync } from 'node:fs';
import { mkdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { errno } from '@cflow/format/node';
import { runChild } from './child.js';
import { hold } from './resources.js';

const ROOT = '/sys/fs/cgroup/memory';
/** A process that was killed leaves its group a little later. */
const TRIES = 50;
const BETWEEN_MS = 20;

export interface GroupUse {
  readonly limit: number;
  /** Bytes at most. */
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

  /** A group of its own, or why there can be none. @param limit bytes */
  static async create(name: string, limit: number, root = ROOT): Promise<MemoryGroup | string> {
    const folder = join(root, `cflow-bench-${process.pid}-${name}`);
    try {
      await mkdir(folder);
      await writeFile(join(folder, 'memory.limit_in_bytes'), `${limit}`);
      return new MemoryGroup(folder, limit);
    } catch (error) {
      await rmdir(folder).catch(() => undefined);
      return `no memory cgroup (v1) can be made: ${errno(error)}`;
    }
  }

  /** What its processes used. */
  async use(): Promise<GroupUse> {
    const read = (file: string) => readFile(join(this.folder, file), 'utf8');
    const kills = /oom_kill (\d+)/.exec(await read('memory.oom_control'))?.[1] ?? '0';
    return {
      limit: this.#limit,
      most: Number(await read('memory.max_usage_in_bytes')),
      killed: Number(kills) > 0,
    };
  }

  /** Once its processes have ended. */
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

/** Where nothing can be waited for any more. */
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

/**
 * Does a job in a process that is in the group of `folder` from its first byte: what this one has, when it joins, is not
 * counted.
 */
export function inGroup<Result>(folder: string, child: string, job: unknown): Promise<Result> {
  writeFileSync(join(folder, 'cgroup.procs'), `${process.pid}`);
  return runChild<Result>(child, job);
}
