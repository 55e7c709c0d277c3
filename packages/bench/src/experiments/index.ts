/** The table of experiments, in the order of `--help`. */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Experiment } from '../runner/experiment.js';
import { cache } from './cache/cache.js';
import { capped } from './capped/capped.js';
import { convert } from './convert.js';
import { criticalPathExperiment } from './critical-path.js';
import { decode, prefill } from './decode/decode.js';
import { overlap } from './overlap/overlap.js';
import { peers } from './peers/peers.js';
import { quality } from './quality.js';
import { storage } from './storage/storage.js';
import { structure } from './structure.js';

const PUBLISHED: readonly Experiment[] = [
  decode,
  prefill,
  peers,
  quality,
  convert,
  storage,
  overlap,
  cache,
  capped,
  criticalPathExperiment,
  structure,
];

/** Includes finished research, which exists only in the repository. */
export async function experiments(): Promise<readonly Experiment[]> {
  const research = new URL('../research/', import.meta.url);
  if (!existsSync(fileURLToPath(research))) return PUBLISHED;
  const { RESEARCH } = await import('../research/index.js');
  return [...PUBLISHED, ...RESEARCH];
}
