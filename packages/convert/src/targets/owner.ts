/** Which process a file that is being written belongs to. */
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { z } from 'zod';

export const ownerSchema = z.strictObject({ pid: z.int(), host: z.string(), started: z.string() });
export type Owner = z.infer<typeof ownerSchema>;

export function thisProcess(): Owner {
  return { pid: process.pid, host: hostname(), started: startOf(process.pid) };
}

/** When a process began, in the ticks of Linux: a number that is given again has another start. Empty elsewhere. */
function startOf(pid: number): string {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name in parentheses may hold anything; fields count from behind it.
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '';
  } catch {
    return '';
  }
}

/** Whether the process still runs, as far as this machine can tell. */
export function isRunning(owner: Owner): boolean {
  if (owner.host !== hostname()) return false;
  try {
    process.kill(owner.pid, 0);
  } catch (error) {
    // No permission to signal it means that it is there.
    if ((error as NodeJS.ErrnoException).code !== 'EPERM') return false;
  }
  return startOf(owner.pid) === owner.started;
}
