/** `--save FILE` of the commands that measure. */
import { inputsOf } from './files.js';
import { describeMachine } from './machine.js';
import { type BenchResult, type Measured, RESULT_SCHEMA, writeResult } from './result.js';

/** What of a command line says nothing of the measurement. */
const NOT_OPTIONS = new Set(['_', '$0', 'json', 'save', 'quiet']);

/** The result as a file holds it, with this machine measured now. Kebab-cased doubles of options are left out. */
export async function resultOf(
  command: string,
  args: Readonly<Record<string, unknown>>,
  measured: Measured,
): Promise<BenchResult> {
  const named = Object.entries(args).filter(
    ([key, value]) => !NOT_OPTIONS.has(key) && !key.includes('-') && value !== undefined,
  );
  return {
    schema: RESULT_SCHEMA,
    command,
    machine: await describeMachine(),
    date: new Date().toISOString(),
    options: Object.fromEntries(named.map(([key, value]) => [key, withoutFolders(value)])),
    ...measured,
  };
}

/** A file is known by its name; where it lay is nobody's business. */
function withoutFolders(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutFolders);
  return typeof value === 'string' && value.includes('/') ? value.split('/').at(-1) : value;
}

/** Writes what was measured to `args.save`, where there is one. */
export async function save(
  command: string,
  args: Readonly<Record<string, unknown>>,
  measured: () => Measured,
): Promise<void> {
  if (typeof args.save !== 'string') return;
  await writeResult(args.save, await resultOf(command, args, measured()), await inputsOf(args));
}
