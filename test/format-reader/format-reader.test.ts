/**
 * docs/format.md suffices: a reader in Python, written from it alone, lists, checks and dequantizes what the converter
 * writes of every committed checkpoint, in both versions and containers, and refuses what is damaged.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { convert } from '@cflow/convert';
import {
  DTYPE_NAMES,
  type FormatVersion,
  littleEndianF32,
  memorySource,
  openModel,
  readStream,
  streamTensors,
  verifyModel,
} from '@cflow/format';
import { makeConfig, makeModel, random } from '@cflow/test-kit/models';
import { afterAll, describe, expect, it } from 'vitest';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const READER = fileURLToPath(new URL('cflow_reader.py', import.meta.url));
const GOLDEN = 'packages/runtime-native/test/golden';
const FORMS = [5, 6].flatMap((version) =>
  ['cflow', 'vflow'].map((container) => ({ version: version as FormatVersion, container })),
);

/** Every directory with a config.json under these. */
const CHECKPOINTS = ['models', GOLDEN, `${GOLDEN}/hf`].flatMap((folder) =>
  readdirSync(join(ROOT, folder), { withFileTypes: true })
    .map(({ name }) => join(folder, name))
    .filter((path) => existsSync(join(ROOT, path, 'config.json'))),
);

const python = spawnSync('python3', ['-c', 'import struct; struct.pack("<e", 1)']).status === 0;
const directory = mkdtempSync(join(tmpdir(), 'cflow-reader-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

type Listing = Record<string, { version?: number; tensors?: Record<string, unknown>; refused?: string }>;

function readByPython(paths: readonly string[]): Listing {
  const maxBuffer = 2 ** 28;
  return JSON.parse(execFileSync('python3', [READER, ...paths], { encoding: 'utf8', maxBuffer }));
}

/** What the package reads, in the form of the Python reader. */
async function read(path: string) {
  const source = memorySource(readFileSync(path), path);
  const file = await openModel(source);
  const tensors: Record<string, unknown> = {};
  for (const { name, stream } of file.streams.values()) {
    const values = await readStream(source, file, name);
    for (const tensor of streamTensors(stream)) {
      const bytes = littleEndianF32(values.get(tensor.name)!);
      const digest = createHash('sha256').update(bytes).digest('hex');
      const dtype = tensor.matrix ? (tensor.dtype ?? file.dtype) : 'f32';
      tensors[tensor.name] = [dtype, tensor.shape, digest];
    }
  }
  return { version: file.layout.version, tensors };
}

async function isSound(bytes: Uint8Array): Promise<boolean> {
  const source = memorySource(bytes);
  try {
    for await (const _ of verifyModel(source, await openModel(source))) return false;
    return true;
  } catch {
    return false;
  }
}

describe.skipIf(!python)('the reader in Python', () => {
  it.each(CHECKPOINTS)('reads what is written of %s', async (checkpoint) => {
    const paths: string[] = [];
    for (const [i, { version, container }] of FORMS.entries()) {
      const output = join(directory, `${version}.${container}`);
      const dtype = DTYPE_NAMES[(i + CHECKPOINTS.indexOf(checkpoint)) % DTYPE_NAMES.length]!;
      const common = { overwrite: true, threads: 1, formatVersion: version };
      await convert({ ...common, source: join(ROOT, checkpoint), output, dtype });
      paths.push(output);
    }
    const listing = readByPython(paths);
    for (const path of paths) expect(listing[path]).toEqual(await read(path));
  });

  it('reads what version 6 alone holds: 512 experts, dtypes of single tensors', async () => {
    const config = makeConfig({ layers: 1, experts: 512, hiddenDim: 8 });
    const dtypes = new Map([['layers.0.experts.300.down_proj.weight', 'q8_0' as const]]);
    const { bytes } = await makeModel(config, 'q4_0', 'cflow', { version: 6, dtypes });
    const path = join(directory, 'wide.cflow');
    writeFileSync(path, bytes);
    expect(readByPython([path])[path]).toEqual(await read(path));
  });

  it.each(FORMS)(
    'refuses every flipped byte that the package refuses: $version, .$container',
    async (form) => {
      const { version, container } = form;
      const made = await makeModel(makeConfig(), 'q4_0', container as 'cflow' | 'vflow', { version });
      const next = random(11);
      const damaged = new Map<string, boolean>();
      for (let i = 0; i < 60; i++) {
        const copy = made.bytes.slice();
        copy[next() % copy.length]! ^= 1 << (next() & 7);
        const path = join(directory, `damaged-${i}.${container}`);
        writeFileSync(path, copy);
        damaged.set(path, await isSound(copy));
      }
      const listing = readByPython([...damaged.keys()]);
      const found = [...damaged.keys()].map((path) => [path, listing[path]!.refused === undefined]);
      expect(found).toEqual([...damaged]);
    },
  );
});
