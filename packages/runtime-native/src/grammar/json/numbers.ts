/** Numbers of JSON between bounds, as grammars: decimal digits without exponents. */
import {
  chars,
  choice,
  EMPTY,
  NEVER,
  type Node,
  optional,
  type Range,
  repeat,
  sequence,
  text,
} from '../grammar.js';

/** Digits of a number with bounds: as many as survive the way through a double. */
const DIGITS = 15;
/** Digits after the point, and before it, where the bounds need no others. */
const FRACTION = 6;
const WHOLE = DIGITS - FRACTION;

const digitRange = (low: number, high: number) => chars([0x30 + low, 0x30 + high] satisfies Range);
const DIGIT = digitRange(0, 9);
const digits = (min: number, max: number) => repeat(DIGIT, min, max);

/** Any integer of up to 16 digits. */
export const INTEGER = sequence(
  optional(text('-')),
  choice(text('0'), sequence(digitRange(1, 9), digits(0, 15))),
);
/** Any number that a double holds: the exponent has at most two digits. */
export const NUMBER = sequence(
  INTEGER,
  optional(sequence(text('.'), digits(1, 16))),
  optional(
    sequence(chars([0x45, 0x45], [0x65, 0x65]), optional(chars([0x2b, 0x2b], [0x2d, 0x2d])), digits(1, 2)),
  ),
);

/** Bounds of a number, all of them optional. */
export interface Bounds {
  readonly minimum?: number | undefined;
  readonly maximum?: number | undefined;
  readonly exclusiveMinimum?: number | undefined;
  readonly exclusiveMaximum?: number | undefined;
}

/** Numbers within bounds; undefined where a bound has more digits than numbers here may have. */
export function numberNode(bounds: Bounds, integer: boolean): Node | undefined {
  const given = Object.values(bounds).filter((bound) => bound !== undefined);
  if (given.length === 0) return integer ? INTEGER : NUMBER;
  const whole = Math.max(WHOLE, ...given.map((bound) => wholeDigits(bound)));
  if (whole > DIGITS) return undefined;
  const fraction = integer ? 0 : DIGITS - whole;
  const limit = 10n ** BigInt(DIGITS) - 1n;
  let low = -limit;
  let high = limit;
  const raise = (bound: number | undefined, beyond: bigint) => {
    if (bound !== undefined)
      low = max(low, scaled(bound, fraction, 'up') + (isExact(bound, fraction) ? beyond : 0n));
  };
  const lower = (bound: number | undefined, beyond: bigint) => {
    if (bound !== undefined)
      high = min(high, scaled(bound, fraction, 'down') - (isExact(bound, fraction) ? beyond : 0n));
  };
  raise(bounds.minimum, 0n);
  raise(bounds.exclusiveMinimum, 1n);
  lower(bounds.maximum, 0n);
  lower(bounds.exclusiveMaximum, 1n);
  return choice(
    ...(low < 0n ? [sequence(text('-'), between(max(1n, -min(high, -1n)), -low, fraction))] : []),
    ...(high >= 0n ? [between(max(0n, low), high, fraction)] : []),
  );
}

const max = (a: bigint, b: bigint) => (a > b ? a : b);
const min = (a: bigint, b: bigint) => (a < b ? a : b);

/** Digits and exponent of the shortest text that is this number. */
function decimal(value: number): { readonly digits: bigint; readonly exponent: number } {
  const [, sign, mantissa, exponent] = /^(-?)(.*)e(.*)$/.exec(value.toExponential())!;
  const [first, rest = ''] = mantissa!.split('.');
  return { digits: BigInt(`${sign}${first}${rest}`), exponent: Number(exponent) - rest.length };
}

function wholeDigits(value: number): number {
  return Math.abs(value) < 1
    ? 1
    : String(decimal(Math.trunc(value)).digits).replace('-', '').length +
        Math.max(0, decimal(Math.trunc(value)).exponent);
}

/** Whether a bound has no more digits after the point. */
function isExact(value: number, fraction: number): boolean {
  const { digits: all, exponent } = decimal(value);
  return exponent + fraction >= 0 || all % 10n ** BigInt(-exponent - fraction) === 0n;
}

/** A bound in units of the last digit, rounded into the range. */
function scaled(value: number, fraction: number, direction: 'up' | 'down'): bigint {
  const { digits: all, exponent } = decimal(value);
  const power = exponent + fraction;
  if (power >= 0) return all * 10n ** BigInt(power);
  const unit = 10n ** BigInt(-power);
  const floor = all / unit - (all % unit < 0n ? 1n : 0n);
  return direction === 'up' && all % unit !== 0n ? floor + 1n : floor;
}

/** Numbers not below 0, in units of the last digit after the point. */
function between(low: bigint, high: bigint, fraction: number): Node {
  if (low > high) return NEVER;
  const unit = 10n ** BigInt(fraction);
  const tail = (from: bigint, to: bigint) => fractionNode(pad(from, fraction), pad(to, fraction));
  const first = low / unit;
  const last = high / unit;
  if (first === last) return sequence(text(String(first)), tail(low % unit, high % unit));
  return choice(
    sequence(text(String(first)), tail(low % unit, unit - 1n)),
    sequence(text(String(last)), tail(0n, high % unit)),
    sequence(wholeNode(first + 1n, last - 1n), tail(0n, unit - 1n)),
  );
}

const pad = (value: bigint, length: number) => (length === 0 ? '' : String(value).padStart(length, '0'));

/** Integers not below 0, without leading zeros. */
function wholeNode(low: bigint, high: bigint): Node {
  const parts: Node[] = [];
  for (let from = low; from <= high; ) {
    const length = String(from).length;
    const to = min(high, 10n ** BigInt(length) - 1n);
    parts.push(sameLength(String(from), String(to)));
    from = to + 1n;
  }
  return choice(...parts);
}

/** Texts of digits from one to another of the same length. */
function sameLength(low: string, high: string): Node {
  if (isAll(low, high)) return digits(low.length, low.length);
  const [first, last] = [Number(low[0]), Number(high[0])];
  const rest = low.length - 1;
  if (first === last) return sequence(text(low[0]!), sameLength(low.slice(1), high.slice(1)));
  return choice(
    sequence(text(low[0]!), sameLength(low.slice(1), '9'.repeat(rest))),
    sequence(text(high[0]!), sameLength('0'.repeat(rest), high.slice(1))),
    ...(last - first > 1 ? [sequence(digitRange(first + 1, last - 1), digits(rest, rest))] : []),
  );
}

/** Point and digits, or nothing for zero; zeros at the end may be left out. */
function fractionNode(low: string, high: string): Node {
  if (low === '') return EMPTY;
  const some = sequence(text('.'), fractionDigits(low, high, false));
  return isZero(low) ? choice(EMPTY, some) : some;
}

/** Digits whose value, with zeros behind them, is from one to another of the same length. */
function fractionDigits(low: string, high: string, mayEnd: boolean): Node {
  if (isAll(low, high)) return digits(mayEnd ? 0 : 1, low.length);
  const [first, last] = [Number(low[0]), Number(high[0])];
  const rest = low.length - 1;
  const end = mayEnd && isZero(low) ? [EMPTY] : [];
  const next = (from: string, to: string) => fractionDigits(from, to, true);
  if (first === last) return choice(...end, sequence(text(low[0]!), next(low.slice(1), high.slice(1))));
  return choice(
    ...end,
    sequence(text(low[0]!), next(low.slice(1), '9'.repeat(rest))),
    sequence(text(high[0]!), next('0'.repeat(rest), high.slice(1))),
    ...(last - first > 1 ? [sequence(digitRange(first + 1, last - 1), digits(0, rest))] : []),
  );
}

/** Whether digits from `low` to `high` are any digits, or none. */
const isAll = (low: string, high: string) => isZero(low) && /^9*$/.test(high);
const isZero = (number: string) => /^0*$/.test(number);
