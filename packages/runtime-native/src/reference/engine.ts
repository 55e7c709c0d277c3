import { asCflowError, buildPlan, CflowError, type ModelConfig, type TransferMode } from '@cflow/format';
import {
  type BatchOutcome,
  type BatchRun,
  type Engine,
  type EngineFactory,
  type EngineSession,
  interrupt,
  type RunOptions,
} from '../engine.js';
import { FileWeightStore, type WeightStore } from '../weights.js';
import { Interpreter } from './interpreter.js';

/** The reference engine over the weights of a file. */
export const openReferenceEngine: EngineFactory = async (source, file, { transfers = 'none' }) => {
  const weights = new FileWeightStore(source, file);
  return referenceEngine(file.config, weights, transfers, () => weights.residentBytes);
};

/** The reference engine over any weights. */
export function referenceEngine(
  config: ModelConfig,
  weights: WeightStore,
  transfers: TransferMode = 'none',
  weightBytes: () => number = () => 0,
): Engine {
  const plan = buildPlan(config, { transfers });
  return {
    name: 'reference',
    runBatch,
    createSession: () => new ReferenceSession(new Interpreter(plan, weights), weightBytes),
    close: async () => undefined,
  };
}

/** One after the other. */
async function runBatch(runs: readonly BatchRun[]): Promise<BatchOutcome[]> {
  if (new Set(runs.map(({ session }) => session)).size < runs.length)
    throw new CflowError('USAGE', 'a session is named twice in a batch');
  const outcomes: BatchOutcome[] = [];
  for (const { session, ids, logits = true, signal } of runs) {
    try {
      const last = await session.run(ids, { signal });
      outcomes.push({ logits: logits ? last : undefined });
    } catch (error) {
      outcomes.push({ error: asCflowError(error) });
    }
  }
  return outcomes;
}

class ReferenceSession implements EngineSession {
  readonly #interpreter: Interpreter;
  readonly #weightBytes: () => number;

  constructor(interpreter: Interpreter, weightBytes: () => number) {
    this.#interpreter = interpreter;
    this.#weightBytes = weightBytes;
  }

  async run(ids: readonly number[], { signal, onLogits }: RunOptions = {}): Promise<Float32Array> {
    for (const [index, id] of ids.entries()) {
      interrupt(signal);
      await this.#interpreter.step(id, { logits: onLogits !== undefined || index === ids.length - 1 });
      onLogits?.(index, this.#interpreter.logits);
    }
    return this.#interpreter.logits;
  }

  async truncate(position: number): Promise<number> {
    return this.#interpreter.truncate(position);
  }

  fork(): EngineSession {
    return new ReferenceSession(this.#interpreter.fork(), this.#weightBytes);
  }

  stats() {
    return { weightBytes: this.#weightBytes(), cacheBytes: this.#interpreter.cacheBytes };
  }

  async close(): Promise<void> {}
}
