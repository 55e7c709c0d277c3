/**
 * Readers of hostile files: whatever the bytes, they end in a model or in a CflowError, after few reads, and never ask
 * for a byte that the file does not have. 20,000 mutants by default; CFLOW_FUZZ_MUTANTS=200000 for more:
 *
 *     CFLOW_FUZZ_MUTANTS=200000 npx vitest run test/fuzz
 *
 * A failure names specimen and number; `mutant(specimen, number)` makes the same bytes again.
 */
import {
  type ByteSource,
  CflowError,
  type Container,
  crc32,
  GLOBAL_HEADER,
  openModel,
  readTensor,
  VFLOW_HEADER,
  verifyModel,
} from '@cflow/format';
import { type MadeModel, makeBareModel, makeConfig, makeModel } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import { readSafetensorsHeader } from '../../packages/convert/src/sources/safetensors.js';
import { mutant, type Specimen } from './mutate.js';

// biome-ignore lint/suspicious/noUndeclaredEnvVars: turbo does not run the tests
const REQUESTED = process.env.CFLOW_FUZZ_MUTANTS;
const MUTANTS = Number(REQUESTED ?? 20_000);
/** Opening, verifying and reading one tensor pass over a file some three times; ten is a loop. */
const PASSES = 10;
const MOST_READS = 2_000;

const HEADERS = { cflow: GLOBAL_HEADER, vflow: VFLOW_HEADER };
const CONFIG = makeConfig({
  layers: 2,
  denseDelay: 1,
  expertDelay: 1,
  hiddenDim: 8,
  vocabSize: 9,
  slidingEvery: 2,
});
const PLAIN = makeConfig({ layers: 3, expertDelay: 1, hiddenDim: 8, vocabSize: 9 });

function modelSpecimen(name: string, container: Container, { bytes, layout }: MadeModel): Specimen {
  const hot = layout.regions.flatMap(({ kind, offset, length }): [number, number][] =>
    kind === 'padding' || kind === 'stream' ? [] : [[offset, offset + length]],
  );
  const find = (region: string) => layout.regions.find((r) => r.name === region);
  const table = find('layer_table')!;
  const metadata = find('metadata');
  const field = HEADERS[container].fields.find((f) => f.name === 'head_checksum')!.offset;
  return {
    name,
    bytes,
    hot: [[0, HEADERS[container].bytes], ...hot],
    json: metadata ? [metadata.offset, metadata.offset + metadata.length] : [0, 0],
    repair: (mutated) => {
      if (mutated.length < table.offset + table.length) return;
      const view = new DataView(mutated.buffer);
      if (container === 'cflow' && view.getUint8(0) & 1) view.setBigUint64(72, BigInt(mutated.length), true);
      view.setUint32(field, 0, true);
      view.setUint32(field, crc32(mutated.subarray(0, table.offset + table.length)), true);
    },
  };
}

function safetensorsSpecimen(): Specimen {
  const rows = ['a.weight', 'b', 'c'].map((name, i) => [
    name,
    {
      dtype: ['F32', 'BF16', 'I64'][i],
      shape: [[2, 3], [4], []][i],
      data_offsets: [
        [0, 24],
        [24, 32],
        [32, 40],
      ][i],
    },
  ]);
  const text = JSON.stringify({ __metadata__: { format: 'pt' }, ...Object.fromEntries(rows) });
  const bytes = new Uint8Array(8 + text.length + 40);
  bytes.set(new TextEncoder().encode(text), 8);
  const repair = (mutated: Uint8Array) => {
    if (mutated.length > 48) new DataView(mutated.buffer).setBigUint64(0, BigInt(mutated.length - 48), true);
  };
  repair(bytes);
  return { name: 'safetensors', bytes, hot: [[0, 8 + text.length]], json: [8, 8 + text.length], repair };
}

class Overreach extends Error {}

/** Refuses reads outside the file, and more reading than any sound use needs. */
function watched(bytes: Uint8Array): ByteSource {
  let budget = PASSES * bytes.length + 65_536;
  let reads = 0;
  return {
    name: 'mutant',
    size: bytes.length,
    read: async (offset, length) => {
      const sane = Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= 0 && length >= 0;
      if (!sane || offset + length > bytes.length) throw new Overreach(`${length} bytes at ${offset}`);
      budget -= length;
      if (budget < 0) throw new Overreach(`more than ${PASSES} passes`);
      if (++reads > MOST_READS) throw new Overreach(`more than ${MOST_READS} reads`);
      return bytes.subarray(offset, offset + length);
    },
  };
}

async function useModel(source: ByteSource): Promise<void> {
  const file = await openModel(source);
  for await (const fault of verifyModel(source, file))
    if (!fault.region) throw new Error('a fault without region');
  await readTensor(source, file, 'embed_tokens.weight');
}

const SPECIMENS: [Specimen, (source: ByteSource) => Promise<unknown>, share: number][] = [
  [modelSpecimen('cflow', 'cflow', await makeModel(CONFIG, 'q4_0', 'cflow')), useModel, 0.3],
  [modelSpecimen('vflow', 'vflow', await makeModel(CONFIG, 'q8_0', 'vflow')), useModel, 0.3],
  [modelSpecimen('bare cflow', 'cflow', makeBareModel(PLAIN, 'f16', 'cflow')), useModel, 0.1],
  [modelSpecimen('bare vflow', 'vflow', makeBareModel(PLAIN, 'f32', 'vflow')), useModel, 0.1],
  [safetensorsSpecimen(), readSafetensorsHeader, 0.2],
];

/** What became of each mutant: `accepted`, or the code of its error. */
async function run(specimen: Specimen, use: (source: ByteSource) => Promise<unknown>, count: number) {
  const outcomes: Record<string, number> = {};
  const problems: string[] = [];
  for (let index = 0; index < count && problems.length < 10; index++) {
    const bytes = mutant(specimen, index);
    let outcome = 'accepted';
    try {
      await use(watched(bytes));
    } catch (error) {
      if (error instanceof CflowError && error.code !== 'INTERNAL') outcome = error.code;
      else problems.push(`${specimen.name} ${index}: ${error instanceof Error ? error.stack : error}`);
    }
    outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
  }
  return { outcomes, problems };
}

describe('fuzz', () => {
  it.each(SPECIMENS)('sound: $name', async (specimen, use) => {
    await use(watched(specimen.bytes));
  });

  it.each(SPECIMENS)('mutants of $name', { timeout: 30 * 60_000 }, async (specimen, use, share) => {
    const { outcomes, problems } = await run(specimen, use, Math.ceil(share * MUTANTS));
    expect(problems).toEqual([]);
    // Mutants that all fail at the first check would test nothing.
    expect(Object.keys(outcomes).length).toBeGreaterThan(2);
    if (REQUESTED) console.info(specimen.name, outcomes);
  });
});
