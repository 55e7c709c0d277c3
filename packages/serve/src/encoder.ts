/** Texts to ids: short ones at once, long ones in a thread of their own. */
import { Worker } from 'node:worker_threads';
import type { Model } from '@cflow/runtime-native';
import { type EncodeKind, encodersOf } from './encode-worker.js';

/** Characters of a text that are encoded at once, in some tens of milliseconds. */
const SHORT = 1 << 14;
/** Milliseconds after which a thread without a text ends. */
const IDLE_MS = 60_000;

/** Encodes texts for one model. */
export class Encoder {
  readonly #metadata: object | undefined;
  readonly #encoders: ReturnType<typeof encodersOf>;
  #worker: Worker | undefined;
  #idle: NodeJS.Timeout | undefined;
  /** Long texts one after the other. */
  #turn: Promise<unknown> = Promise.resolve();

  /** @throws CflowError as Model.requireTokenizer */
  constructor(model: Model) {
    this.#metadata = model.metadata?.tokenizer;
    this.#encoders = encodersOf(model.requireTokenizer(), model.metadata?.tokenizer?.chatTemplate);
  }

  /** Ids of a text. The signal ends it. @throws the signal's reason */
  async encode(kind: EncodeKind, text: string, signal: AbortSignal): Promise<number[]> {
    if (text.length <= SHORT) return this.#encoders[kind](text);
    const encoded = this.#turn.then(() => this.#apart(kind, text, signal));
    this.#turn = encoded.catch(() => undefined);
    return encoded;
  }

  /** Ends the thread. */
  async close(): Promise<void> {
    clearTimeout(this.#idle);
    await this.#worker?.terminate();
    this.#worker = undefined;
  }

  async #apart(kind: EncodeKind, text: string, signal: AbortSignal): Promise<number[]> {
    signal.throwIfAborted();
    clearTimeout(this.#idle);
    this.#worker ??= this.#start();
    const worker = this.#worker;
    try {
      return await answerOf(worker, { kind, text }, signal);
    } catch (error) {
      // It would go on with a text that nobody wants.
      await this.close();
      throw error;
    } finally {
      this.#idle = setTimeout(() => void this.close(), IDLE_MS).unref();
    }
  }

  #start(): Worker {
    // Tests run from src/, where the script exists only compiled.
    const here = import.meta.url.replace(/\/src\/encoder\.ts$/, '/dist/encoder.js');
    const worker = new Worker(new URL('./encode-worker.js', here), {
      workerData: { tokenizer: this.#metadata },
    });
    worker.unref();
    return worker;
  }
}

function answerOf(worker: Worker, task: object, signal: AbortSignal): Promise<number[]> {
  return new Promise((resolve, reject) => {
    const settle =
      <T>(then: (value: T) => void) =>
      (value: T) => {
        signal.removeEventListener('abort', onAbort);
        for (const event of ['message', 'error', 'exit']) worker.removeAllListeners(event);
        then(value);
      };
    const onAbort = settle(() => reject(signal.reason));
    signal.addEventListener('abort', onAbort, { once: true });
    worker.once(
      'message',
      settle((ids: Int32Array) => resolve([...ids])),
    );
    worker.once('error', settle(reject));
    worker.once(
      'exit',
      settle((code: number) => reject(new Error(`the thread that encodes ended with ${code}`))),
    );
    worker.postMessage(task);
  });
}
