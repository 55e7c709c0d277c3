import { readFileSync } from 'node:fs';

/**
 * Peak memory of this process, bytes: VmHWM, which belongs to this process alone; ru_maxrss, where there is no /proc,
 * also counts what the parent held before the exec.
 */
export function peakBytes(): number {
  return statusBytes('VmHWM') ?? 1024 * process.resourceUsage().maxRSS;
}

/** A line of /proc/self/status, bytes; undefined where there is none. */
export function statusBytes(field: string): number | undefined {
  try {
    const found = new RegExp(`${field}:\\s+(\\d+)`).exec(readFileSync('/proc/self/status', 'utf8'));
    return found ? 1024 * Number(found[1]) : undefined;
  } catch {
    return undefined;
  }
}
