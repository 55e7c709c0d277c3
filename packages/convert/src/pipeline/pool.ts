import { Worker } from 'node:worker_threads';
import { CflowError, ERRORS, type ErrorCode } from '@cflow/format';
import type { HashResult, HashTask } from './hash-worker.js';
import type { StripeResult, StripeTask } from './worker.js';

export type Task = StripeTask | HashTask;
export type TaskResult = StripeResult | HashResult;

interface Waiting {
  resolve(result: TaskResult): void;
  reject(error: Error): void;
}
interface Reply {
  job: number;
  result?: TaskResult;
  failure?: { message: string; code?: string };
}

/** A fixed number of worker threads; each task goes to the one with the least to do. */
export class WorkerPool {
  readonly #workers: { worker: Worker; jobs: Set<number> }[];
  readonly #waiting = new Map<number, Waiting>();
  #nextJob = 0;

  /** `script`: of each thread; it calls `serveTasks`. */
  constructor(threads: number, script: 'worker.js' | 'hash-worker.js') {
    // Tests run from src/, where the worker exists only compiled.
    const file = new URL(import.meta.url.replace(/\/src\/pipeline\/pool\.ts$/, '/dist/pipeline/pool.js'));
    this.#workers = Array.from({ length: threads }, () => {
      const worker = new Worker(new URL(`./${script}`, file));
      const entry = { worker, jobs: new Set<number>() };
      worker.on('message', (reply: Reply) => this.#settle(entry.jobs, reply));
      worker.on('error', (error) => this.#fail(entry.jobs, error));
      return entry;
    });
  }

  run(task: Task): Promise<TaskResult> {
    const job = this.#nextJob++;
    const entry = this.#workers.reduce((least, other) => (other.jobs.size < least.jobs.size ? other : least));
    entry.jobs.add(job);
    return new Promise((resolve, reject) => {
      this.#waiting.set(job, { resolve, reject });
      entry.worker.postMessage({ job, task }, ownedBuffers(task));
    });
  }

  async close(): Promise<void> {
    await Promise.all(this.#workers.map(({ worker }) => worker.terminate()));
  }

  #settle(jobs: Set<number>, { job, result, failure }: Reply): void {
    const waiting = this.#waiting.get(job)!;
    this.#waiting.delete(job);
    jobs.delete(job);
    if (result) waiting.resolve(result);
    else waiting.reject(failureOf(failure!));
  }

  #fail(jobs: Set<number>, cause: Error): void {
    for (const job of jobs) {
      this.#waiting
        .get(job)
        ?.reject(new CflowError('INTERNAL', `a worker stopped: ${cause.message}`, { cause }));
    }
    jobs.clear();
  }
}

/** What the thread gets instead of a copy. */
function ownedBuffers(task: Task): ArrayBuffer[] {
  if (task.kind === 'hash') return [];
  const values = task.stripes.flatMap(({ weights }) => (weights instanceof Float32Array ? [weights] : []));
  return [task.out, ...values.map(({ buffer }) => buffer as ArrayBuffer)];
}

/** Errors cross threads as plain data; the code makes them typed again. */
function failureOf({ message, code }: { message: string; code?: string }): Error {
  return new CflowError(code && Object.hasOwn(ERRORS, code) ? (code as ErrorCode) : 'INTERNAL', message);
}
