import { parentPort } from 'node:worker_threads';

/** What the pool sends. */
export interface Request<Task> {
  readonly job: number;
  readonly task: Task;
}

/** Bytes of the result are handed over. */
export function answer(job: number, result: object): void {
  const bytes = 'bytes' in result ? result.bytes : undefined;
  const transfer = bytes instanceof Uint8Array ? [bytes.buffer as ArrayBuffer] : [];
  parentPort?.postMessage({ job, result }, transfer);
}

export function answerFailure(job: number, error: unknown): void {
  const { message, code } = error as Error & { code?: string };
  parentPort?.postMessage({ job, failure: { message, code } });
}

/** Answers each task that this thread is sent with its result, or with what an error says. */
export function serveTasks<Task>(run: (task: Task) => object): void {
  parentPort?.on('message', ({ job, task }: Request<Task>) => {
    try {
      answer(job, run(task));
    } catch (error) {
      answerFailure(job, error);
    }
  });
}
