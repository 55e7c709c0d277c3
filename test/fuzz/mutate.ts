/** Mutants of a file, the same for the same seed. */
import { random } from '@cflow/test-kit/models';

/** A file to mutate: where its structure is, and how to repair the checksum that would hide what follows. */
export interface Specimen {
  readonly name: string;
  readonly bytes: Uint8Array;
  /** Bytes worth mutating: headers, tables, text. Some mutations go anywhere. */
  readonly hot: readonly (readonly [from: number, to: number])[];
  /** The JSON text, for edits that know about JSON. */
  readonly json: readonly [from: number, to: number];
  /** Makes checksums right again, in place. */
  readonly repair?: (bytes: Uint8Array) => void;
}

type Random = () => number;
type Mutation = (bytes: Uint8Array, at: number, next: Random, specimen: Specimen) => Uint8Array;

/** Values at which arithmetic on sizes and offsets goes wrong. */
const EDGES = [
  0n,
  1n,
  2n,
  7n,
  8n,
  88n,
  255n,
  256n,
  4_095n,
  4_096n,
  65_535n,
  65_536n,
  2n ** 31n - 1n,
  2n ** 31n,
  2n ** 32n - 1n,
  2n ** 32n,
  2n ** 48n,
  2n ** 53n - 1n,
  2n ** 53n,
  2n ** 63n,
  2n ** 64n - 4_096n,
  2n ** 64n - 1n,
];
const SNIPPETS = [
  ...[
    '"__proto__":{},',
    '"constructor":1,',
    '{"a":',
    '[[[[[[[[',
    ']]]]',
    '}',
    ',',
    ',,',
    '"',
    '\\',
    '\\ud800',
    'null',
  ],
  ...[
    '-1',
    '1e999',
    '1e-999',
    '9007199254740993',
    '0.5',
    'NaN',
    'Infinity',
    '65536',
    '256',
    '2147483648',
    'true',
  ],
  ...['""', '[]', '{}', '"\\u0000"', '\ufeff', '99999999999999999999', '00'],
];
const pick = <T>(from: readonly T[], next: Random): T => from[next() % from.length]!;

function splice(bytes: Uint8Array, at: number, remove: number, insert: Uint8Array): Uint8Array {
  const out = new Uint8Array(bytes.length - remove + insert.length);
  out.set(bytes.subarray(0, at));
  out.set(insert, at);
  out.set(bytes.subarray(at + remove), at + insert.length);
  return out;
}

/** Writes `width` bytes of an edge value, or of one near the value that is there. */
function overwrite(width: 2 | 4 | 8): Mutation {
  return (bytes, at, next) => {
    const start = Math.min(at, Math.max(0, bytes.length - width));
    let value = pick(EDGES, next);
    if (next() % 3 === 0) {
      value = BigInt((next() % 9) - 4);
      for (let i = 0; i < width; i++) value += BigInt(bytes[start + i] ?? 0) << BigInt(8 * i);
    }
    for (let i = 0; i < width && start + i < bytes.length; i++) {
      bytes[start + i] = Number((value >> BigInt(8 * i)) & 255n);
    }
    return bytes;
  };
}

/** Replaces, inserts or removes inside the JSON text; half of the time keeping its length, as headers state it. */
const editJson: Mutation = (bytes, _, next, { json: [from, to] }) => {
  const end = Math.min(to, bytes.length);
  if (end <= from) return bytes;
  const at = from + (next() % (end - from));
  const snippet = new TextEncoder().encode(pick(SNIPPETS, next));
  if (next() & 1) {
    bytes.set(snippet.subarray(0, end - at), at);
    return bytes;
  }
  const remove = Math.min(end - at, next() & 1 ? snippet.length : next() % 24);
  const out = splice(bytes, at, remove, snippet);
  // Spaces make up for what is missing, so that what follows keeps its place.
  const missing = remove - snippet.length;
  return missing > 0 ? splice(out, at + snippet.length, 0, new Uint8Array(missing).fill(0x20)) : out;
};

/** Swaps one number of the JSON text for another of as many digits. */
const editNumber: Mutation = (bytes, _, next, { json: [from, to] }) => {
  const end = Math.min(to, bytes.length);
  for (let at = from + (next() % Math.max(1, end - from)); at < end; at++) {
    const digit = bytes[at]! - 0x30;
    if (digit < 0 || digit > 9) continue;
    bytes[at] = 0x30 + (next() % 10);
    if (next() & 1) break;
  }
  return bytes;
};

const MUTATIONS: readonly Mutation[] = [
  (bytes, at, next) => {
    if (bytes.length) bytes[at % bytes.length]! ^= 1 << (next() & 7);
    return bytes;
  },
  (bytes, at, next) => {
    if (bytes.length) bytes[at % bytes.length] = next() & 1 ? 0xff : 0;
    return bytes;
  },
  overwrite(2),
  overwrite(4),
  overwrite(8),
  overwrite(8),
  (bytes, at) => bytes.slice(0, at),
  (bytes, at, next) => splice(bytes, at, 0, new Uint8Array(1 + (next() % 20)).fill(next() & 255)),
  (bytes, at, next) => splice(bytes, at, Math.min(bytes.length - at, next() % 20), new Uint8Array(0)),
  (bytes, at, next) => {
    // A piece of the file over another place.
    const from = next() % (bytes.length + 1);
    const length = Math.min(next() % 128, bytes.length - Math.max(from, at));
    if (length > 0) bytes.copyWithin(at, from, from + length);
    return bytes;
  },
  editJson,
  editJson,
  editNumber,
];

function place(specimen: Specimen, length: number, next: Random): number {
  if (next() % 8 === 0) return next() % (length + 1);
  const [from, to] = pick(specimen.hot, next);
  return Math.min(length, from + (next() % (to - from)));
}

/** Mutant number `index`: one to four mutations, and half of the time the checksum repaired. */
export function mutant(specimen: Specimen, index: number): Uint8Array {
  const next = random(index * 2_654_435_761 + specimen.name.length);
  let bytes: Uint8Array = specimen.bytes.slice();
  for (let n = 1 + (next() % 4); n > 0; n--) {
    bytes = pick(MUTATIONS, next)(bytes, place(specimen, bytes.length, next), next, specimen);
  }
  if (next() & 1) specimen.repair?.(bytes);
  return bytes;
}
