import { parentPort } from 'node:worker_threads';

/** Answers each task that this thread is sent with its result, or with what an error says. Bytes are handed over. */
export function serveTasks<Task>(run: (task: Task) => object): void {
  parentPort?.on('message', ({ job, task }: { job: number; task: Task }) => {
    try {
      const result = run(task);
      const bytes = 'bytes' in result ? result.bytes : undefined;
      const transfer = bytes instanceof Uint8Array ? [bytes.buffer as ArrayBuffer] : [];
      parentPort!.postMessage({ job, result }, transfer);
    } catch (error) {
      const { message, code } = error as Error & { code?: string };
      parentPort!.postMessage({ job, failure: { message, code } });
    }
  });
}
