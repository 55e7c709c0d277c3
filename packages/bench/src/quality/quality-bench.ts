/** What quantization costs a model: its loss on a text, for each way to store the weights. */
import { stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { convert } from '@cflow/convert';
import type { Dtype } from '@cflow/format';
import { readTextFile } from '@cflow/format/node';
import { Model, type NativeEngineOptions, perplexity, splitStories } from '@cflow/runtime-native';
import { interruption, temporaryFolder } from '../harness/resources.js';
import { type Divergence, divergence } from './divergence.js';

export interface QualityOptions {
  /** Checkpoint with a tokenizer. */
  readonly source: string;
  /** File of texts that `<|endoftext|>` separates; each is scored from an empty context, up to the model's length. */
  readonly texts: string;
  /** How many texts, from the first; absent = all. */
  readonly stories?: number;
  /** `f32` shows the cost of the weights alone, `q8` with that of the activations which decoding them goes with. */
  readonly arithmetic: NativeEngineOptions['arithmetic'];
  readonly threads?: number;
}

export interface QualityRow {
  readonly weights: string;
  readonly fileBytes: number;
  /** Mean over the predicted tokens. */
  readonly nats: number;
  readonly perplexity: number;
  /** Perplexity over that of the first row, less one. */
  readonly cost: number;
  /** From the first row; 0 and 1 there. */
  readonly divergence: Divergence;
}

export interface QualityReport {
  readonly model: string;
  readonly arithmetic: NativeEngineOptions['arithmetic'];
  readonly stories: number;
  readonly predictedTokens: number;
  readonly rows: readonly QualityRow[];
}

/** By name; the first is what the others are compared with. */
const WEIGHTS: Readonly<Record<string, { readonly dtype: Dtype; readonly scaleSearch?: boolean }>> = {
  f32: { dtype: 'f32' },
  q8_0: { dtype: 'q8_0' },
  'q4_0, by the rule of the report': { dtype: 'q4_0', scaleSearch: false },
  'q4_0, scales searched (default)': { dtype: 'q4_0' },
};

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
  const { model, stories, predictedTokens, perplexity: exact } = scores[0]!;
  const rows = scores.map(({ weights, fileBytes, nats, perplexity, divergence }) => {
    return { weights, fileBytes, nats, perplexity, divergence, cost: perplexity / exact - 1 };
  });
  return { model, arithmetic, stories, predictedTokens, rows };
}

type Score = Awaited<ReturnType<typeof score>>;

const openScored = (file: string, { arithmetic, threads }: QualityOptions) =>
  Model.open(file, { arithmetic, threads });

async function score(exact: Model, file: string, texts: string, options: QualityOptions) {
  const { stories } = options;
  await using model = await openScored(file, options);
  const tokens = model.config.contextLength;
  const result = await perplexity(model, texts, { stories, tokens, signal: interruption });
  const ids = splitStories(texts)
    .slice(0, stories)
    .map((story) => model.tokenizer!.encode(story).slice(0, tokens));
  return {
    model: model.config.name,
    fileBytes: (await stat(file)).size,
    divergence: await divergence(exact, model, ids),
    ...result,
  };
}
