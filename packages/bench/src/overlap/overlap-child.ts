/** One measurement of the disk tier in a process of its own. */
import { answerJob } from '../harness/child.js';
import { runOverlap } from './run-overlap.js';

await answerJob('overlap-child', runOverlap);
