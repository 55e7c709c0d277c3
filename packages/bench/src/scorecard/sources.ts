/** Where the scorecard's figures come from: the other commands. Nothing is measured by code of its own. */
import { asCflowError, CflowError } from '@cflow/format';
import { loadAddon } from '@cflow/runtime-native';
import { criticalPaths, pathMeasured } from '../analysis/critical-path.js';
import { fileStructure } from '../analysis/structure.js';
import { measureQuick as cache } from '../cache/command.js';
import { benchDecode } from '../decode/decode-bench.js';
import { decodeMeasured } from '../decode/decode-metrics.js';
import { parseVariants } from '../decode/variants.js';
import type { Measure, MeasureContext } from '../harness/quick.js';
import type { BenchResult, Measured } from '../harness/result.js';
import { measureQuick as l1d } from '../l1d/command.js';
import { measureQuick as overlap } from '../overlap/command.js';
import { PEER_MODELS, peersMeasured } from '../peers/cli-peers.js';
import { benchPeers, CHECKED } from '../peers/peers-bench.js';
import { measureQuick as residual } from '../residual/command.js';
import { measureQuick as storage } from '../storage/command.js';

export const SOURCE_NAMES = [
  'critical-path',
  'structure',
  'kernels',
  'delays',
  'l1d',
  'storage',
  'overlap',
  'ladder',
  'cache',
  'residual',
  'peers',
] as const;
export type SourceName = (typeof SOURCE_NAMES)[number];

/** Figures of one source, and where they are from: `here`, or the result file that holds them. */
export interface Evidence {
  readonly measured?: Measured | undefined;
  readonly result?: BenchResult | undefined;
  /** Why there are no figures of here. */
  readonly problem?: string | undefined;
}
export type EvidenceOf = Partial<Record<SourceName, Evidence>>;

const SOURCES: Readonly<Record<SourceName, Measure>> = {
  'critical-path': async () => pathMeasured(criticalPaths('q4_0')),
  structure: ({ model }) => fileStructure(model),
  kernels: (context) => variants(context, `isa=${kernelIsas().join(',')}`),
  delays: (context) => variants(context, 'delayAware=on,off'),
  l1d,
  storage,
  overlap,
  ladder: async () => {
    const remedy = 'cflow-bench overlap MODEL --ladder --save packages/bench/results/ladder.json';
    throw new CflowError('UNSUPPORTED', 'a model larger than the bundled one is needed', { remedy });
  },
  cache,
  residual,
  peers: async ({ quick, threads }) => {
    if (quick) throw new CflowError('UNSUPPORTED', 'gigabytes of weights are no quick run');
    const lengths = { tokens: 32, prefill: 512, warmup: 128, context: 1024, checked: CHECKED };
    return peersMeasured(await benchPeers({ models: PEER_MODELS, threads, runs: 3, ...lengths }));
  },
};

/** The best and the worst that the CPU has: what vectors are worth. */
function kernelIsas(): string[] {
  const { available = [] } = loadAddon()?.isa() ?? {};
  if (available.length < 2) throw new CflowError('UNSUPPORTED', 'no vector kernels: no native addon');
  return [...new Set([available[0]!, ...available.filter((isa) => isa === 'avx2'), available.at(-1)!])];
}

async function variants({ model, threads, quick }: MeasureContext, list: string): Promise<Measured> {
  const report = await benchDecode({
    file: model,
    threads,
    runs: quick ? 3 : 9,
    tokens: quick ? 64 : 250,
    prefill: 16,
    warmup: 32,
    context: 0,
    variants: parseVariants([list], { engine: 'native' }),
  });
  return decodeMeasured(report);
}

/** @returns the figures, or why there are none: one source that fails leaves the others their say */
export async function measureSource(name: SourceName, context: MeasureContext): Promise<Evidence> {
  try {
    return { measured: await SOURCES[name](context) };
  } catch (error) {
    if (error instanceof CflowError && error.code === 'INTERRUPTED') throw error;
    return { problem: withoutFolders(asCflowError(error).message) };
  }
}

/** Result files are for everyone; where things lay on one machine is not. */
const withoutFolders = (message: string) => message.replace(/(?:\/[^\s:/]+)+\//g, '');
