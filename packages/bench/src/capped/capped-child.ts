/** One measurement under a memory cap in a process of its own. */
import { answerJob } from '../harness/child.js';
import { runCapped } from './run-capped.js';

await answerJob('capped-child', runCapped);
