// A worker thread with a model of its own: built output, as users run it. Posts the last logits, or runs until it is ended.
import { parentPort, workerData } from 'node:worker_threads';
import { Model } from '@cflow/runtime-native';

const { path, ids, options } = workerData;
const model = await Model.open(path, { engine: 'native', ...options });
const session = model.createSession();
parentPort.postMessage('started');
await session.prefill(ids);
parentPort.postMessage(session.logits());
await model.close();
