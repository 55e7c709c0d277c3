/** Numbers of bytes, as people write and read them: GiB and MiB for memory, GB and MB for files and bandwidth. */
import { CflowError } from '@cflow/format/internal/errors.js';
import { plural } from './text.js';

const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'] as const;
const DECIMAL = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'] as const;
type Unit = (typeof BINARY)[number] | (typeof DECIMAL)[number];

/** Bytes of each unit. */
const BYTES = new Map<Unit, number>([
  ...BINARY.map((unit, power) => [unit, 1024 ** power] as const),
  ...DECIMAL.map((unit, power) => [unit, 1000 ** power] as const),
]);

/** By lower-case name; without a `B` they are binary, as in ulimit and containers. */
const SPELLINGS = new Map<string, number>([
  ['', 1],
  ...[...BYTES].map(([unit, bytes]) => [unit.toLowerCase(), bytes] as const),
  ...BINARY.slice(1).map((unit) => [unit[0]!.toLowerCase(), BYTES.get(unit)!] as const),
]);

/** Fewer plain bytes than a page: somebody forgot the unit. */
const LEAST_PLAIN = 4096;

/**
 * `2GiB`, `1.5 GB`, `800m` or plain bytes.
 * @throws CflowError USAGE for anything else, for what is not above 0, and for a small number without a unit
 */
export function parseBytes(text: string, field: string): number {
  const [, number, unit = '?'] = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text) ?? [];
  const bytes = Math.floor(Number(number) * (SPELLINGS.get(unit.toLowerCase()) ?? Number.NaN));
  if (unit === '' && bytes > 0 && bytes < LEAST_PLAIN) {
    throw new CflowError('USAGE', `${number} without a unit is ${plural(bytes, 'byte')}`, {
      field,
      value: text,
      remedy: `write ${number}GiB or ${number}GB`,
    });
  }
  if (Number.isSafeInteger(bytes) && bytes > 0) return bytes;
  throw new CflowError('USAGE', `${JSON.stringify(text)} is not a number of bytes`, {
    field,
    value: text,
    remedy: 'write 2GiB, 1.5GB, 800MiB or a plain number',
  });
}

/** Memory: `2 GiB`, `4.50 MiB`; `1500 MB` if somebody asked for that, since whole megabytes do not occur by chance. */
export function memoryText(bytes: number): string {
  const typed = bytes > 0 && bytes % 1e6 === 0 && bytes % 2 ** 20 !== 0;
  return typed ? `${bytes / 1e6} MB` : scaled(bytes, BINARY).replace('.00 ', ' ');
}

/** A file, or bytes that are read or written: `17.40 GB`. */
export const fileText = (bytes: number) => scaled(bytes, DECIMAL);

/** Bandwidth: `21.35 GB/s`. */
export const rateText = (bytesPerSecond: number) => `${scaled(bytesPerSecond, DECIMAL)}/s`;

/** A number of `unit` for a column that names it; below a tenth two significant digits, so that little is not zero. */
export function inUnit(bytes: number, unit: Unit): string {
  const value = bytes / BYTES.get(unit)!;
  return value === 0 || value >= 0.1 ? value.toFixed(2) : String(Number(value.toPrecision(2)));
}

/** Two decimals of the largest unit of which there is one or more; bytes have none. */
function scaled(bytes: number, units: readonly Unit[]): string {
  const unit = [...units].reverse().find((each) => bytes >= BYTES.get(each)!) ?? 'B';
  return `${(bytes / BYTES.get(unit)!).toFixed(unit === 'B' ? 0 : 2)} ${unit}`;
}
