/** Keeps the logits of one engine, in a process of its own. */
import { answerJob } from '../harness/child.js';
import { runLogits } from './run-logits.js';

await answerJob('logits-child', runLogits);
