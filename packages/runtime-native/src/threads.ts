import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';

/** How many threads this process may keep busy. */
export interface ThreadBudget {
  readonly threads: number;
  /** Where the number came from, for people. */
  readonly reason: string;
}

/** min(affinity, ⌊cgroup quota⌋), at least 1. A container's quota is not in the core count of its host. */
export async function threadBudget(): Promise<ThreadBudget> {
  const affinity = availableParallelism();
  const quota = (await quotaV2()) ?? (await quotaV1());
  if (quota !== undefined && quota < affinity) {
    return { threads: Math.max(1, Math.floor(quota)), reason: `cgroup quota of ${quota} CPUs` };
  }
  return { threads: affinity, reason: 'CPUs this process may use' };
}

async function quotaV2(): Promise<number | undefined> {
  const text = await readFile('/sys/fs/cgroup/cpu.max', 'utf8').catch(() => undefined);
  return text === undefined ? undefined : parseQuota(text);
}

async function quotaV1(): Promise<number | undefined> {
  const read = (name: string) => readFile(`/sys/fs/cgroup/cpu/cpu.${name}`, 'utf8').catch(() => undefined);
  const [quota, period] = [await read('cfs_quota_us'), await read('cfs_period_us')];
  return quota === undefined || period === undefined ? undefined : parseQuota(`${quota.trim()} ${period}`);
}

/** `"150000 100000"` is 1.5 CPUs; `"max 100000"` and `"-1 100000"` are no limit. */
export function parseQuota(text: string): number | undefined {
  const [quota, period] = text.trim().split(/\s+/).map(Number);
  return quota !== undefined && period !== undefined && quota > 0 && period > 0 ? quota / period : undefined;
}
