/**
 * The edges of the delays: the first δd layers, which have no delayed residual yet; the last δe layers, where late
 * experts are clamped; the first token; sequences on an engine that others have used to the end of the context, and
 * windows that have wrapped. One batch, token by token and the interpreter give the same residuals, and the norms are
 * those of PyTorch.
 */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ModelConfig } from '@cflow/format';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { difference, goldenJson, norm, type Trace } from './helpers.js';
import { goldenFile } from './model-file.js';
import { interpreted, native, PATHS, type Traced } from './traced.js';

const TOLERANCE = 1e-4;
/** Between two ways to compute the same in f32. */
const CLOSE = 1e-5;
const ARCHITECTURES = ['arch2_4', 'arch2_4_sync', 'arch4'] as const;

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-delays-'));
});
afterAll(() => rm(directory, { recursive: true }));

let files = 0;
async function file(arch: string, change: (config: ModelConfig) => Partial<ModelConfig> = () => ({})) {
  const { config } = await goldenFile(`trained_${arch}`);
  const { bytes } = await goldenFile(`trained_${arch}`, {}, change(config));
  const path = join(directory, `${files++}.cflow`);
  await writeFile(path, bytes);
  return path;
}

const traceOf = (arch: string) => goldenJson(`trained_${arch}`, 'trace.json') as Trace;

/** Every residual of every token is the same vector, and so are routings, final norms and logits. */
function expectSame(actual: readonly Traced[], expected: readonly Traced[], tolerance = CLOSE): void {
  expect(actual).toHaveLength(expected.length);
  const vectors = (all: readonly Traced[]) =>
    all.flatMap(({ residuals, routings, final, logits }) => [...residuals, ...routings, final, logits]);
  const wanted = vectors(expected);
  expect(Math.max(...vectors(actual).map((x, i) => difference(x, wanted[i]!)))).toBeLessThan(tolerance);
}

function expectNorms(actual: readonly Traced[], { residualNorms }: Pick<Trace, 'residualNorms'>): void {
  const errors = residualNorms.flatMap((norms, position) =>
    norms.map((wanted, layer) => Math.abs(norm(actual[position]!.residuals[layer]!) / wanted - 1)),
  );
  expect(errors.length).toBeGreaterThan(0);
  expect(Math.max(...errors)).toBeLessThan(TOLERANCE);
}

/** Only the layers `keep` accepts, of traced tokens and of recorded norms. */
function layers(actual: readonly Traced[], trace: Trace, keep: (layer: number) => boolean) {
  const only = <T>(list: readonly T[]) => list.filter((_, layer) => keep(layer));
  return {
    actual: actual.map((token) => ({ ...token, residuals: only(token.residuals) })),
    expected: { residualNorms: trace.residualNorms.map(only) },
  };
}

describe.each(ARCHITECTURES)('trained %s', (arch) => {
  const trace = traceOf(arch);
  const run = async () => {
    const path = await file(arch);
    const [batch, single] = [
      await PATHS.batch(path, trace.tokens),
      await PATHS['token by token'](path, trace.tokens),
    ];
    return { batch, single, reference: await interpreted(path, trace.tokens) };
  };

  it('first layers, last layers, first token: one batch, token by token, interpreter, PyTorch', async () => {
    const { config } = await goldenFile(`trained_${arch}`);
    const { denseDelay, expertDelay, layers: all } = config;
    const { batch, single, reference } = await run();
    expectSame(batch, reference);
    expectSame(single, reference);
    for (const traced of [batch, single, reference]) {
      expectNorms(traced.slice(0, 1), { residualNorms: trace.residualNorms.slice(0, 1) });
      const first = layers(traced, trace, (layer) => layer <= denseDelay);
      expectNorms(first.actual, first.expected);
      const last = layers(traced, trace, (layer) => layer >= all.length - 1 - expertDelay);
      expectNorms(last.actual, last.expected);
      expectNorms(traced, trace);
    }
  });

  it('a new sequence after one that filled the context, and beside one under way', async () => {
    const { config } = await goldenFile(`trained_${arch}`);
    const filling = Array.from(
      { length: config.contextLength },
      (_, i) => (7 * i * i + 3 * i + 1) % config.vocabSize,
    );
    await native(await file(arch), { maxBatch: 24, threads: 2 }, async (start) => {
      await start()(filling);
      const [second, beside] = [start(), start()];
      await beside(filling.slice(0, 5));
      const traced = await second(trace.tokens.slice(0, 2));
      await beside(filling.slice(5, 40));
      for (const id of trace.tokens.slice(2, 10)) traced.push(...(await second([id])));
      traced.push(...(await second(trace.tokens.slice(10))));
      expectNorms(traced, trace);
    });
  });

  it('windows that have wrapped, several times over', async () => {
    const window = 5;
    const path = await file(arch, (config) => ({
      layers: config.layers.map((layer) => ({
        ...layer,
        attention: { ...layer.attention, slidingWindow: window },
      })),
    }));
    const reference = await interpreted(path, trace.tokens);
    expectNorms(reference.slice(0, window), { residualNorms: trace.residualNorms.slice(0, window) });
    expect(() => expectNorms(reference, trace)).toThrow();
    expectSame(await PATHS.batch(path, trace.tokens), reference);
    expectSame(await PATHS.batch(path, trace.tokens, { maxBatch: 7 }), reference);
    expectSame(await PATHS['token by token'](path, trace.tokens), reference);
  });
});

/** Delays that no architecture of the report has, reaching beyond the model or meeting its depth, by PyTorch. */
interface MadeUp {
  denseDelay: number;
  expertDelay: number;
  /** The first so many layers of the checkpoint are the model. */
  depth: number;
  /** By position. */
  residualNorms: Record<string, number[]>;
  finalNorms: Record<string, number>;
}
const MADE_UP = goldenJson('trained_arch2_4', 'delays.json') as MadeUp[];

describe.each(MADE_UP)('δd $denseDelay, δe $expertDelay in $depth layers', (madeUp) => {
  const { denseDelay, expertDelay, depth, residualNorms, finalNorms } = madeUp;
  const { tokens } = traceOf('arch2_4');
  const change = ({ layers }: ModelConfig) => ({ denseDelay, expertDelay, layers: layers.slice(0, depth) });

  it('the interpreter gives the norms of PyTorch', async () => {
    const traced = await interpreted(await file('arch2_4', change), tokens);
    const positions = Object.keys(residualNorms).map(Number);
    expect(residualNorms[0]).toHaveLength(depth);
    const at = positions.map((position) => traced[position]!);
    expectNorms(at, { residualNorms: positions.map((position) => residualNorms[position]!) });
    const final = at.map((token) => norm(token.final));
    expect(difference(final, Object.values(finalNorms))).toBeLessThan(TOLERANCE);
  });

  it('batches, single tokens, phases in program order and threads give what the interpreter gives', async () => {
    const path = await file('arch2_4', change);
    const reference = await interpreted(path, tokens);
    for (const options of [{}, { maxBatch: 6 }, { delayAware: false }, { threads: 3 }]) {
      expectSame(await PATHS.batch(path, tokens, options), reference);
      expectSame(await PATHS['token by token'](path, tokens, options), reference);
    }
  });
});

it('delays change what a model computes, so that the tests above can fail', async () => {
  const { tokens, residualNorms } = traceOf('arch2_4');
  for (const change of [{ denseDelay: 2 }, { denseDelay: 0 }, { expertDelay: 1 }, { expertDelay: 3 }]) {
    const traced = await PATHS.batch(await file('arch2_4', () => change), tokens);
    expect(() => expectNorms(traced, { residualNorms })).toThrow();
  }
});
