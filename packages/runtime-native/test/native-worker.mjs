// A worker thread with a model of its own: built output, as users run it. Posts that it computes, then the last logits.
import { setImmediate } from 'node:timers/promises';
import { parentPort, workerData } from 'node:worker_threads';
import { Model } from '@cflow/runtime-native';

const { path, ids, options } = workerData;
const model = await Model.open(path, { engine: 'native', ...options });
const session = model.createSession();
const run = session.prefill(ids);
while (session.stats().native.bytesRead === 0) await setImmediate();
parentPort.postMessage('computes');
await run;
parentPort.postMessage(session.logits());
await model.close();
