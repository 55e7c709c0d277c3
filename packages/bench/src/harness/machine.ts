/** Describes this machine, and measures its limits. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { cpus, loadavg, release, tmpdir, totalmem, type } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { loadAddon, threadBudget } from '@cflow/runtime-native';
import { readBandwidth } from './bandwidth.js';
import { diskLimits } from './disk.js';
import type { Machine } from './machine-schema.js';
import { spreadOf } from './statistics.js';

const DIGITS = 12;
/** From the folder of this module, in src/ or dist/. */
const ROOT = '../../../..';

export interface MachineOptions {
  /** Where the disk is measured; the directory for temporary files by default. */
  readonly directory?: string | undefined;
}

/** Takes about two seconds: read bandwidth and disk are measured, in a process of their own. */
export async function describeMachine({ directory = tmpdir() }: MachineOptions = {}): Promise<Machine> {
  const [load = 0] = loadavg();
  const { threads, reason } = await threadBudget();
  const bandwidth = spreadOf(await readBandwidth(threads));
  return {
    cpu: cpus()[0]?.model.trim() || 'unknown',
    isa: loadAddon()?.isa().selected ?? null,
    cores: { online: cpus().length || 1, allowed: threads, why: reason, load: Number(load.toFixed(2)) },
    memoryLimit: memoryLimit(),
    readBandwidth: bandwidth ? { threads, ...bandwidth } : null,
    disk: await diskLimits(directory),
    os: `${type()} ${release()}`,
    node: process.version,
    commit: await commitOf(import.meta.dirname),
  };
}

/** Of the cgroup, where it is less than the machine has. */
export function memoryLimit(): number {
  const limit = process.constrainedMemory();
  return limit > 0 && limit < totalmem() ? limit : totalmem();
}

/** Not of a repository that this package is installed in. */
async function commitOf(folder: string): Promise<string | null> {
  if (!existsSync(join(folder, ROOT, '.git'))) return null;
  const args = ['describe', '--always', '--dirty', `--abbrev=${DIGITS}`, '--exclude=*'];
  const run = promisify(execFile)('git', args, { cwd: folder, encoding: 'utf8' });
  return run.then(
    ({ stdout }) => stdout.trim(),
    () => null,
  );
}
