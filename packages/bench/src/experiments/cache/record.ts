/** Records the routings of a model, and the accuracy of the prediction of the next layer's. */
import { CflowError, type ModelConfig } from '@cflow/format';
import { type EngineOptions, type NativeRouting, TextTokenizer } from '@cflow/runtime-native';
import type { Engine, EngineSession } from '@cflow/runtime-native/internal/engine.js';
import { openNativeEngine } from '@cflow/runtime-native/internal/native/engine.js';
import { withModelFile } from '../../runner/files.js';
import { throwIfInterrupted } from '../../runner/resources.js';
import { sampler, textIds } from '../../runner/tokens.js';

export interface Recording {
  readonly config: ModelConfig;
  readonly routings: readonly NativeRouting[];
}

interface Opened {
  readonly config: ModelConfig;
  readonly tokenizer: TextTokenizer | undefined;
  readonly engine: Engine;
}

function withEngine<T>(
  path: string,
  options: EngineOptions,
  use: (opened: Opened) => Promise<T>,
): Promise<T> {
  return withModelFile(path, async (file, source) => {
    const { tokenizer } = file.metadata;
    const engine = await openNativeEngine(source, file, options);
    try {
      return await use({ config: file.config, tokenizer: tokenizer && new TextTokenizer(tokenizer), engine });
    } finally {
      await engine.close();
    }
  });
}

/**
 * Routings of documents, split at <|endoftext|>, or of generated text; `tokens` tokens in total.
 * @throws CflowError UNSUPPORTED for a model without experts, USAGE without a tokenizer or a document
 */
export function record(path: string, texts: string | undefined, tokens: number): Promise<Recording> {
  return withEngine(path, { recordRoutings: true, maxBatch: 1 }, async (opened) => {
    const { config, engine } = opened;
    if (!config.layers.some(({ experts }) => experts))
      throw new CflowError('UNSUPPORTED', 'the model has no experts', { file: path });
    await pass(opened, texts, tokens);
    return { config, routings: engine.takeRoutings?.() ?? [] };
  });
}

async function pass(opened: Opened, texts: string | undefined, tokens: number): Promise<void> {
  if (texts === undefined) return speak(opened, tokens);
  for (const ids of textIds(texts, readerOf(opened), tokens))
    await inSession(opened.engine, (session) => session.run(ids));
}

const readerOf = ({ tokenizer, config: { contextLength } }: Opened) => ({ tokenizer, contextLength });

async function inSession<T>(engine: Engine, use: (session: EngineSession) => Promise<T>): Promise<T> {
  throwIfInterrupted();
  const session = engine.createSession();
  try {
    return await use(session);
  } finally {
    await session.close();
  }
}

const SEED = 1;

/** Samples tokens at temperature 1; starts a new sequence when one ends. */
async function speak({ engine, config }: Opened, tokens: number): Promise<void> {
  const next = sampler(SEED, config.eosTokenIds);
  for (let left = tokens; left > 0; ) {
    left -= await inSession(engine, async (session) => {
      const most = Math.min(left, config.contextLength);
      let id: number | undefined = config.bosTokenId ?? 0;
      let said = 0;
      for (; id !== undefined && said < most; said++) {
        throwIfInterrupted();
        id = next(await session.run([id]));
      }
      return said;
    });
  }
}

/** Effect of predictions on experts that were not in memory. */
export interface Predictions {
  /** Share of the experts read that were already in flight when needed. */
  readonly foreseen: number;
  /** Share of the prefetched experts that were then used. */
  readonly right: number;
}

/** Runs with the smallest expert cache. Layers with delayed experts need no prediction. */
export function predictions(
  path: string,
  { layers }: ModelConfig,
  texts: string | undefined,
  tokens: number,
): Promise<Predictions> {
  const topK = Math.max(...layers.map(({ experts }) => experts?.topK ?? 0));
  // Experts in use, and those prefetched.
  const direct = { expertSlots: 2 * topK };
  return withEngine(
    path,
    { weights: 'direct', transfers: 'predict', maxBatch: 1, direct },
    async (opened) => {
      await pass(opened, texts, tokens);
      const tiers = await inSession(opened.engine, async (session) => session.stats().native!.tiers);
      const { predicted, misses, ahead } = tiers;
      return { foreseen: predicted / Math.max(1, predicted + misses), right: predicted / Math.max(1, ahead) };
    },
  );
}
