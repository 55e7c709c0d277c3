/** One measurement of decoding in a process of its own. */
import { answerJob } from '../harness/child.js';
import type { DecodeJob } from './decode-job.js';
import { runCflow } from './run-cflow.js';
import { runLlama } from './run-llama.js';

await answerJob('decode-child', (job: DecodeJob) => {
  return job.kind === 'cflow' ? runCflow(job) : runLlama(job);
});
