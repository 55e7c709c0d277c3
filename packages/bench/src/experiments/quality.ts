/** Cost of quantization: perplexity and KL divergence from f32, for each dtype. */

import { stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { convert } from '@cflow/convert';
import type { Dtype } from '@cflow/format';
import { readTextFile } from '@cflow/format/node';
import { Model, perplexity, splitDocuments } from '@cflow/runtime-native';
import type { NativeEngineOptions } from '@cflow/runtime-native/internal/native/addon.js';
import { inUnit } from '#cli-kit/bytes.js';
import { plural } from '#cli-kit/text.js';
import { leftFirst } from '../report/text.js';
import { experiment } from '../runner/experiment.js';
import { count, SHARED, threadsOf } from '../runner/options.js';
import { interruption, temporaryFolder } from '../runner/resources.js';
import { type Measured, metric } from '../runner/result.js';
import { argmax, klDivergence } from '../runner/statistics.js';

export interface QualityOptions {
  /** Checkpoint with a tokenizer. */
  readonly source: string;
  /** Text file; `<|endoftext|>` separates documents. Each is scored from an empty context, up to the context length. */
  readonly texts: string;
  /** Number of documents, from the first; absent: all. */
  readonly documents?: number;
  /** `f32`: cost of the weights alone. `q8`: includes quantized activations. */
  readonly arithmetic: NativeEngineOptions['arithmetic'];
  readonly threads?: number;
}

export interface QualityRow {
  readonly weights: string;
  readonly fileBytes: number;
  /** Mean over the predicted tokens. */
  readonly nats: number;
  readonly perplexity: number;
  /** Perplexity relative to the first row, minus 1. */
  readonly cost: number;
  /** Relative to the first row; 0 and 1 there. */
  readonly divergence: Divergence;
}

export interface QualityReport {
  readonly model: string;
  readonly arithmetic: NativeEngineOptions['arithmetic'];
  readonly documents: number;
  readonly predictedTokens: number;
  readonly rows: readonly QualityRow[];
}

/** By name; the first is the baseline. */
const WEIGHTS: Readonly<Record<string, { readonly dtype: Dtype; readonly scaleSearch?: boolean }>> = {
  f32: { dtype: 'f32' },
  q8_0: { dtype: 'q8_0' },
  'q4_0, by the rule of the report': { dtype: 'q4_0', scaleSearch: false },
  'q4_0, scales searched (default)': { dtype: 'q4_0' },
};

export const quality = experiment({
  name: 'quality',
  positional: '<source> <texts>',
  describe: 'perplexity, and divergence from f32, of each dtype',
  options: (y) =>
    y
      .positional('source', { type: 'string', demandOption: true, describe: 'checkpoint directory' })
      .positional('texts', { ...SHARED.texts, demandOption: true })
      .option('documents', { type: 'number', describe: 'number of documents [default: all]' })
      .option('arithmetic', {
        choices: ['f32', 'q8'] as const,
        default: 'f32' as const,
        describe:
          'activations: f32 shows the cost of the weights alone, q8 adds that of quantized activations',
      })
      .option('threads', SHARED.threads),
  timed: false,
  measure: async ({ source, texts, arithmetic, documents, threads }) =>
    benchQuality({
      source,
      texts,
      arithmetic,
      ...(documents === undefined ? {} : { documents: count('documents', documents, 2 ** 32) }),
      threads: await threadsOf(threads),
    }),
  results: qualityMeasured,
  json: (report) => report,
  text: describeQuality,
});

/** @throws CflowError as conversion, opening and `perplexity` do */
export async function benchQuality(options: QualityOptions): Promise<QualityReport> {
  const texts = await readTextFile(options.texts);
  return temporaryFolder(tmpdir(), 'quality', (directory) => scoreAll(options, texts, directory));
}

async function scoreAll(options: QualityOptions, texts: string, directory: string): Promise<QualityReport> {
  const { source, arithmetic } = options;
  const scores: (Score & { weights: string })[] = [];
  const exactFile = join(directory, '0.cflow');
  await convert({ source, output: exactFile, signal: interruption, ...WEIGHTS.f32 });
  await using exactModel = await openScored(exactFile, options);
  for (const [weights, stored] of Object.entries(WEIGHTS)) {
    const output = join(directory, `${scores.length}.cflow`);
    if (output !== exactFile) await convert({ source, output, signal: interruption, ...stored });
    scores.push({ weights, ...(await score(exactModel, output, texts, options)) });
  }
  const { model, documents, predictedTokens, perplexity: exact } = scores[0]!;
  const rows = scores.map(({ weights, fileBytes, nats, perplexity, divergence }) => {
    return { weights, fileBytes, nats, perplexity, divergence, cost: perplexity / exact - 1 };
  });
  return { model, arithmetic, documents, predictedTokens, rows };
}

type Score = Awaited<ReturnType<typeof score>>;

const openScored = (file: string, { arithmetic, threads }: QualityOptions) =>
  Model.open(file, { arithmetic, threads });

async function score(exact: Model, file: string, texts: string, options: QualityOptions) {
  const { documents } = options;
  await using model = await openScored(file, options);
  const tokens = model.config.contextLength;
  const result = await perplexity(model, texts, { documents, tokens, signal: interruption });
  const ids = splitDocuments(texts)
    .slice(0, documents)
    .map((story) => model.tokenizer!.encode(story).slice(0, tokens));
  return {
    model: model.config.name,
    fileBytes: (await stat(file)).size,
    divergence: await divergence(exact, model, ids),
    ...result,
  };
}

export interface Divergence {
  /** Mean KL(exact ‖ model) over positions, nats. */
  readonly kl: number;
  /** Share of positions where both have the same most likely token. */
  readonly sameToken: number;
}

/** Over every position of every document. @param texts token ids, at least one in total */
export async function divergence(
  exact: Model,
  model: Model,
  texts: readonly (readonly number[])[],
): Promise<Divergence> {
  let [kl, same, positions] = [0, 0, 0];
  for (const ids of texts) {
    const expected = await logitsOf(exact, ids);
    for (const [i, logits] of (await logitsOf(model, ids)).entries()) {
      kl += klDivergence(expected[i]!, logits);
      if (argmax(expected[i]!) === argmax(logits)) same++;
      positions++;
    }
  }
  return { kl: kl / positions, sameToken: same / positions };
}

async function logitsOf(model: Model, ids: readonly number[]): Promise<Float32Array[]> {
  const all: Float32Array[] = [];
  const session = model.createSession();
  try {
    if (ids.length) await session.prefill(ids, { onLogits: (_, logits) => void all.push(logits.slice()) });
  } finally {
    await session.close();
  }
  return all;
}

function qualityMeasured({ rows }: QualityReport): Measured {
  return {
    metrics: rows.flatMap(({ weights, perplexity, divergence: { kl, sameToken } }) => [
      metric(`${weights}: perplexity`, '', 'lower', [perplexity]),
      metric(`${weights}: KL from f32`, 'nats', 'lower', [kl]),
      metric(`${weights}: same token as f32`, '%', 'higher', [100 * sameToken]),
    ]),
  };
}

function describeQuality({ model, arithmetic, documents, predictedTokens, rows }: QualityReport): string {
  const cells = rows.map(({ weights, fileBytes, nats, perplexity, divergence: { kl, sameToken }, cost }) => [
    weights,
    inUnit(fileBytes, 'MB'),
    nats.toFixed(4),
    perplexity.toFixed(3),
    kl.toFixed(5),
    `${(100 * sameToken).toFixed(1)} %`,
    `${cost < 0 ? '' : '+'}${(100 * cost).toFixed(2)} %`,
  ]);
  const headings = ['weights', 'MB', 'nats/token', 'perplexity', 'KL from f32', 'same token', 'cost'];
  return [
    `${model}: ${plural(predictedTokens, 'token')} of ${plural(documents, 'document')}, ${arithmetic} arithmetic`,
    ...leftFirst([headings, ...cells]),
  ].join('\n');
}
