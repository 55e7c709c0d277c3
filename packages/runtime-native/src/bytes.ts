/** Amounts of memory as people write them. */
import { CflowError } from '@cflow/format';

const UNITS: Readonly<Record<string, number>> = {
  '': 1,
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  k: 2 ** 10,
  m: 2 ** 20,
  g: 2 ** 30,
  t: 2 ** 40,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40,
};

/**
 * `2GiB`, `1.5 GB`, `800m` (binary, as in ulimit and containers) or plain bytes.
 * @throws CflowError USAGE for anything else, and for what is not above 0
 */
export function parseBytes(text: string, field: string): number {
  const [, number, unit] = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text) ?? [];
  const factor = unit === undefined ? undefined : UNITS[unit.toLowerCase()];
  const bytes = Math.floor(Number(number) * (factor ?? Number.NaN));
  if (Number.isSafeInteger(bytes) && bytes > 0) return bytes;
  throw new CflowError('USAGE', `${JSON.stringify(text)} is not an amount of memory`, {
    field,
    value: text,
    remedy: 'write 2GiB, 1.5GB, 800MiB or a number of bytes',
  });
}
