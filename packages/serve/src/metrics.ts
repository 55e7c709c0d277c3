/** Figures of a server, for Prometheus. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { Piece, Tally } from './generate.js';
import type { ModelFigures } from './pool.js';

/** What gauges read when they are asked. */
export interface Gauges {
  /** Requests that run or wait. */
  requests(): number;
  /** Figures of the models that are in memory. */
  models(): readonly ModelFigures[];
}

const SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600];
const TOKEN_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];

/** The metrics of one server. */
export class Metrics {
  readonly registry = new Registry();
  readonly #requests: Counter<'route' | 'status'>;
  readonly #seconds: Histogram<'route'>;
  readonly #firstToken: Histogram<'model'>;
  readonly #token: Histogram<'model'>;
  readonly #prompt: Counter<'model'>;
  readonly #generated: Counter<'model'>;
  readonly #loads: Counter<'model' | 'event'>;

  constructor() {
    const registers = [this.registry];
    collectDefaultMetrics({ register: this.registry });
    const model = ['model'] as const;
    this.#requests = new Counter({
      name: 'cflow_requests_total',
      help: 'Requests that were answered, by route and HTTP status',
      labelNames: ['route', 'status'],
      registers,
    });
    this.#seconds = new Histogram({
      name: 'cflow_request_seconds',
      help: 'Time from the head of a request to the end of its answer',
      labelNames: ['route'],
      buckets: SECONDS,
      registers,
    });
    this.#firstToken = new Histogram({
      name: 'cflow_first_token_seconds',
      help: 'Time from the end of the prompt’s encoding to the first token, waiting included',
      labelNames: model,
      buckets: SECONDS,
      registers,
    });
    this.#token = new Histogram({
      name: 'cflow_token_seconds',
      help: 'Time between two tokens of a request',
      labelNames: model,
      buckets: TOKEN_SECONDS,
      registers,
    });
    this.#prompt = new Counter({
      name: 'cflow_prompt_tokens_total',
      help: 'Tokens of prompts that were answered',
      labelNames: model,
      registers,
    });
    this.#generated = new Counter({
      name: 'cflow_generated_tokens_total',
      help: 'Tokens that were generated',
      labelNames: model,
      registers,
    });
    this.#loads = new Counter({
      name: 'cflow_model_loads_total',
      help: 'Models that were loaded into memory, and unloaded',
      labelNames: ['model', 'event'],
      registers,
    });
  }

  /** Adds gauges that are read when Prometheus asks. */
  show(gauges: Gauges): void {
    const registers = [this.registry];
    new Gauge({
      name: 'cflow_requests_running',
      help: 'Requests that run or wait',
      registers,
      collect() {
        this.set(gauges.requests());
      },
    });
    const rows: [string, string, (figures: ModelFigures) => number][] = [
      ['cflow_sequences_running', 'Sequences that are being generated', ({ running }) => running],
      ['cflow_batch_size', 'Sequences of the last step', ({ batchSize }) => batchSize],
      [
        'cflow_reused_tokens',
        'Prompt tokens so far that did not have to be computed',
        ({ reusedTokens }) => reusedTokens,
      ],
      [
        'cflow_kept_cache_bytes',
        'KV caches that are kept for prompts that begin alike',
        ({ keptBytes }) => keptBytes,
      ],
      ['cflow_queue_length', 'Sequences that wait for a place', ({ waiting }) => waiting],
      ['cflow_weight_bytes', 'Weights in memory', ({ engine }) => engine.weightBytes],
    ];
    for (const [name, help, value] of rows) {
      new Gauge({
        name,
        help,
        labelNames: ['model'],
        registers,
        collect() {
          this.reset();
          for (const model of gauges.models()) this.set({ model: model.id }, value(model));
        },
      });
    }
  }

  /** Counts a request that was answered. */
  answered(route: string, status: number, seconds: number): void {
    this.#requests.inc({ route, status });
    this.#seconds.observe({ route }, seconds);
  }

  /** Counts a model that came or went. */
  modelChanged(event: 'loaded' | 'unloaded', model: string): void {
    this.#loads.inc({ model, event });
  }

  /** Tokens of a model so far. */
  async tokens(model: string): Promise<{ prompt_tokens: number; generated_tokens: number }> {
    const of = async (counter: Counter<'model'>) =>
      (await counter.get()).values.find(({ labels }) => labels.model === model)?.value ?? 0;
    return { prompt_tokens: await of(this.#prompt), generated_tokens: await of(this.#generated) };
  }

  /** The same pieces, measured. */
  async *watch(
    model: string,
    tally: Tally,
    pieces: AsyncGenerator<Piece, void, void>,
  ): AsyncGenerator<Piece, void, void> {
    let before = performance.now();
    let first = true;
    for await (const piece of pieces) {
      const now = performance.now();
      (first ? this.#firstToken : this.#token).observe({ model }, (now - before) / 1000);
      if (first) this.#prompt.inc({ model }, tally.prompt);
      this.#generated.inc({ model });
      first = false;
      before = now;
      yield piece;
    }
  }
}
