/** Finished research, not published: the results are committed, the code can reproduce them. */
import type { Experiment } from '../runner/experiment.js';
import { l1d } from './l1d/l1d.js';
import { residual } from './residual/residual.js';

export const RESEARCH: readonly Experiment[] = [l1d, residual];
