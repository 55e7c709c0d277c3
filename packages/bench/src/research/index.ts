/** Finished research: its results are committed, its code stays in the repository to repeat it, and is not published. */
import type { Experiment } from '../runner/experiment.js';
import { l1d } from './l1d/l1d.js';
import { residual } from './residual/residual.js';

export const RESEARCH: readonly Experiment[] = [l1d, residual];
