/** The flags of cflow-run, in errors and notes. */
import { CflowError } from '@cflow/format/internal/errors.js';
import { type Arguments, OFFLOAD, OPTIONS } from './options.js';

/** Options of disk I/O whose names differ from those of the library. */
const IO_FLAGS = { block: 'io-block', depth: 'io-depth', backend: 'io-backend', mode: 'io-mode' } as const;

const camelCase = (flag: string) => flag.replace(/-(.)/g, (_, letter: string) => letter.toUpperCase());

/** Flags by the names that the library has for them; not --ids, because ids may come from --prompt. */
const FLAGS: ReadonlyMap<string, string> = new Map([
  ...Object.keys(OPTIONS).flatMap((flag) =>
    flag === 'ids' ? [] : [[camelCase(flag), `--${flag}`] as const],
  ),
  ...Object.entries(IO_FLAGS).map(([name, flag]) => [name, `--${flag}`] as const),
]);

/** Runs work that calls the library: errors name the flag instead of the library's option. */
export async function namingFlags<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw error instanceof CflowError ? namingFlag(error) : error;
  }
}

function namingFlag(error: CflowError): CflowError {
  const { code, problem, details } = error;
  // A field of a file is not an option.
  const flag = details.file === undefined ? FLAGS.get(details.field ?? '') : undefined;
  return flag ? new CflowError(code, problem, { ...details, field: flag }) : error;
}

/** The given flags that concern offloaded weights. */
export function offloadFlags(args: Arguments): string[] {
  const names = Object.entries(OPTIONS).filter(([, option]) => 'group' in option && option.group === OFFLOAD);
  return names.filter(([flag]) => args[flag] !== undefined).map(([flag]) => `--${flag}`);
}
