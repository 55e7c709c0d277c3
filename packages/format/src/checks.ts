/** Checks of what callers pass in: types do not bind who calls from JavaScript. */
import { inspect } from 'node:util';
import { CflowError } from './errors.js';

/** What an option may be. */
export interface Check {
  /** Whether a value may be it. */
  readonly holds: (value: unknown) => boolean;
  /** For people: `is not …`. */
  readonly expected: string;
  readonly limit?: number;
}

/** One check for each option; an absent option passes. */
export type Checks<T> = Readonly<Record<keyof T, Check>>;

/** One of some names. */
export const choice = (names: readonly string[]): Check => ({
  holds: (value) => names.includes(value as string),
  expected: `one of ${names.join(', ')}`,
});

/** A whole number, limits included. */
export const whole = (min: number, limit: number): Check => ({
  holds: (value) => Number.isInteger(value) && (value as number) >= min && (value as number) <= limit,
  expected: `a whole number from ${min} to ${limit}`,
  limit,
});

/** A whole number above 0. */
export const count: Check = {
  holds: (value) => Number.isInteger(value) && (value as number) >= 1,
  expected: 'a whole number above 0',
};

/** A number, limits included. */
export const real = (min: number, limit: number): Check => ({
  holds: (value) => typeof value === 'number' && value >= min && value <= limit,
  expected: `a number from ${min} to ${limit}`,
  limit,
});

const kind = (name: string, expected: string): Check => ({
  holds: (value) => typeof value === name,
  expected,
});
/** True or false. */
export const flag = kind('boolean', 'true or false');
/** A text, empty or not. */
export const text = kind('string', 'a text');
/** A function. */
export const callback = kind('function', 'a function');

/** What a call can be ended with. */
export const abortSignal: Check = {
  holds: (value) =>
    typeof value === 'object' && value !== null && 'aborted' in value && 'addEventListener' in value,
  expected: 'an AbortSignal',
};

/** Token ids; their values are checked by whoever knows the vocabulary. */
export const idList: Check = {
  holds: (value) => Array.isArray(value) || (ArrayBuffer.isView(value) && 'length' in value),
  expected: 'an array of token ids',
};

/** @throws CflowError USAGE that names the field, the value and what is allowed */
export function check(field: string, value: unknown, { holds, expected, limit }: Check): void {
  if (holds(value)) return;
  const details = limit === undefined ? { field, value } : { field, value, limit };
  throw new CflowError('USAGE', `${shown(value)} is not ${expected}`, details);
}

/** @throws CflowError USAGE for the first option that is present and fails its check, or if `options` is no object */
export function checkOptions<T>(options: unknown, checks: Checks<T>): void {
  if (typeof options !== 'object' || options === null) {
    throw new CflowError('USAGE', `${shown(options)} is not an object`, { field: 'options', value: options });
  }
  for (const [name, rule] of Object.entries<Check>(checks)) {
    const value = (options as Record<string, unknown>)[name];
    if (value !== undefined) check(name, value, rule);
  }
}

const MOST_SHOWN = 60;

/** A value for a message: one short line. */
export function shown(value: unknown): string {
  const line = inspect(value, { depth: 0, breakLength: Number.POSITIVE_INFINITY, maxArrayLength: 8 });
  return line.length > MOST_SHOWN ? `${line.slice(0, MOST_SHOWN)}…` : line;
}
