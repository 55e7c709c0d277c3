/**
 * Resources that must not outlive a command: temporary directories, processes, cgroups. The owner releases them; after
 * a signal, this module does.
 */

import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';
import { rmSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { CflowError, ERRORS } from '@cflow/format';
import { errno } from '@cflow/format/node';
import { SIGNALS } from '#cli-kit/signals.js';

/** What a signal interrupts may take this long to end. */
const GRACE_MS = 3000;
/** In a child process: its own children stay in its process group and end with it. */
const GROUPS = process.platform !== 'win32';

const abort = new AbortController();
/** Aborts at the first signal. */
export const interruption: AbortSignal = abort.signal;

const held = new Set<() => void>();
let leads = true;

/** @param release must be quick and synchronous. @returns a function that ends the registration without releasing */
export function hold(release: () => void): () => void {
  held.add(release);
  return () => void held.delete(release);
}

function releaseAll(): void {
  for (const release of [...held].reverse()) {
    try {
      release();
    } catch {
      // Release the others anyway.
    }
  }
  held.clear();
}

/** @throws CflowError INTERRUPTED after a signal */
export function throwIfInterrupted(): void {
  if (interruption.aborted) throw new CflowError('INTERRUPTED', 'interrupted');
}

/** Lets signals arrive in loops that never wait. @throws CflowError INTERRUPTED */
export async function breathe(): Promise<void> {
  await new Promise(setImmediate);
  throwIfInterrupted();
}

/**
 * Runs work that SIGINT, SIGTERM or SIGHUP interrupt: child processes end at once, other work at its next check. A second
 * signal ends this process at once.
 * @throws CflowError INTERRUPTED at most three seconds after a signal, and errors of the work
 */
export async function interruptible<T>(work: () => Promise<T>): Promise<T> {
  let giveUp: NodeJS.Timeout | undefined;
  let onSignal: () => void = () => undefined;
  const overdue = new Promise<void>((resolve) => {
    onSignal = () => {
      if (interruption.aborted) process.exit(ERRORS.INTERRUPTED.exit);
      abort.abort();
      giveUp = setTimeout(resolve, GRACE_MS);
    };
  });
  for (const signal of SIGNALS) process.on(signal, onSignal);
  process.on('exit', releaseAll);
  try {
    const result = await Promise.race([work(), overdue]);
    throwIfInterrupted();
    return result as T;
  } catch (error) {
    throwIfInterrupted();
    throw error;
  } finally {
    clearTimeout(giveUp);
    releaseAll();
    for (const signal of SIGNALS) process.off(signal, onSignal);
    process.off('exit', releaseAll);
  }
}

/**
 * Creates a temporary directory in `parent`, removed after the work.
 * @throws CflowError WRITE_FAILED if it cannot be created
 */
export async function temporaryFolder<T>(
  parent: string,
  name: string,
  work: (folder: string) => Promise<T>,
): Promise<T> {
  throwIfInterrupted();
  const folder = await mkdtemp(join(parent, `cflow-${name}-`)).catch((cause: unknown) => {
    throw new CflowError('WRITE_FAILED', `cannot create a temporary directory: ${errno(cause)}`, {
      file: parent,
      remedy: 'name a writable directory',
      cause,
    });
  });
  const release = hold(() => rmSync(folder, { recursive: true, force: true }));
  try {
    return await work(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
    release();
  }
}

/** Spawns a process that ends with this one, its children included. @throws CflowError INTERRUPTED after a signal */
export function spawnHeld(command: string, args: readonly string[], options: SpawnOptions): ChildProcess {
  throwIfInterrupted();
  const child = spawn(command, args, { ...options, detached: leads && GROUPS });
  const kill = () => endGroup(child);
  const release = hold(kill);
  interruption.addEventListener('abort', kill);
  child.once('close', () => {
    release();
    interruption.removeEventListener('abort', kill);
  });
  return child;
}

function endGroup(child: ChildProcess): void {
  if (child.pid === undefined) return;
  if (!leads || !GROUPS) child.kill('SIGKILL');
  else
    try {
      process.kill(-child.pid, 'SIGKILL');
    } catch {
      // It has ended.
    }
}

/** Called in a process started by `spawnHeld`: its children stay in its process group. */
export function follow(): void {
  leads = false;
}
