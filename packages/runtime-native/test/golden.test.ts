/** The interpreter against traces of PyTorch (`golden/<arch>`): residual norms, router choices, logits. */
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { buildPlan, type ModelConfig, parseModelConfig, type TransferMode } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { Interpreter } from '../src/reference/interpreter.js';
import { MemoryWeightStore } from '../src/weights.js';
import {
  argmax,
  canonicalNames,
  difference,
  GOLDEN_LLAMA,
  goldenJson,
  goldenPath,
  loadSafetensors,
  norm,
  routings,
  type Trace,
} from './helpers.js';

const TOLERANCE = 1e-4;

function load(arch: string): { config: ModelConfig; weights: MemoryWeightStore; trace: Trace } {
  const tensors = loadSafetensors(goldenPath(arch, 'model.safetensors'));
  const trace = goldenJson(arch, 'trace.json') as Trace;
  if (arch === 'llama')
    return { config: GOLDEN_LLAMA, weights: new MemoryWeightStore(canonicalNames(tensors)), trace };
  const { model_type: _, ...config } = goldenJson(arch, 'config.json') as Record<string, unknown>;
  return { config: parseModelConfig(config), weights: new MemoryWeightStore(tensors), trace };
}

interface Run {
  residualNorms: number[][];
  routings: { indices: number[]; weights: number[] }[][];
  logits: Float32Array[];
}

/** Passes the tokens of a trace through a plan and records what the trace records. */
async function run(arch: string, transfers: TransferMode): Promise<Run> {
  const { config, weights, trace } = load(arch);
  const plan = buildPlan(config, { transfers });
  const interpreter = new Interpreter(plan, weights);
  const routes = routings(plan);
  const result: Run = { residualNorms: [], routings: [], logits: [] };
  for (const token of trace.tokens) {
    const norms: number[] = [];
    const chosen: Run['routings'][number] = [];
    const onPhase = (phase: number) => {
      for (const at of plan.residuals) {
        if (at.phase === phase) norms[at.layer] = norm(interpreter.buffer(at.buffer));
      }
      for (const [i, route] of routes.entries()) {
        const both = [...interpreter.buffer(route.buffer)];
        const k = both.length / 2;
        if (route.phase === phase) chosen[i] = { indices: both.slice(0, k), weights: both.slice(k) };
      }
    };
    await interpreter.step(token, { onPhase });
    result.residualNorms.push(norms);
    result.routings.push(chosen);
    result.logits.push(interpreter.logits.slice());
  }
  return result;
}

const architectures = readdirSync(fileURLToPath(new URL('golden', import.meta.url)), { withFileTypes: true })
  .filter((entry) => entry.isDirectory() && entry.name !== 'hf')
  .map(({ name }) => name);

describe.each(architectures)('golden %s', (arch) => {
  it('agrees with PyTorch', async () => {
    const { trace } = load(arch);
    const actual = await run(arch, 'none');
    expect(actual.logits.map(argmax)).toEqual(trace.argmax);
    for (const [position, norms] of trace.residualNorms.entries()) {
      // The last hidden state of transformers is a normed one, so that the trace of the llama has a layer less.
      const found = actual.residualNorms[position]!.slice(0, norms.length);
      expect(difference(found, norms)).toBeLessThan(TOLERANCE);
    }
    for (const [position, logits] of Object.entries(trace.logits)) {
      expect(difference(actual.logits[Number(position)]!, logits)).toBeLessThan(TOLERANCE);
    }
    const indices = actual.routings.map((layers) => layers.map((layer) => layer.indices));
    const weights = actual.routings.map((layers) => layers.map((layer) => layer.weights));
    if (trace.routerIndices) expect(indices).toEqual(trace.routerIndices);
    const flat = (trace.routerWeights ?? []).flat(2);
    if (flat.length) expect(difference(weights.flat(2), flat)).toBeLessThan(TOLERANCE);
  });

  it.each(['stall', 'overlap'] as const)('gives the same bits with transfers: %s', async (transfers) => {
    expect(await run(arch, transfers)).toEqual(await run(arch, 'none'));
  });
});

it('covers the six combine styles of the report and a Hugging Face decoder', () => {
  expect(architectures.length).toBeGreaterThanOrEqual(8);
});
