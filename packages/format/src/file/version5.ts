/** What version 5 of the format cannot hold; everything else is written as version 5 unless asked otherwise. */

import { CflowError } from '../errors.js';
import { VERSION_5_LIMITS } from '../limits.js';
import type { LayerConfig, ModelConfig } from '../model/config.js';
import type { FormatVersion } from './schema.js';

/** A count of a model that is over a limit of version 5. */
export interface BeyondVersion5 {
  readonly field: string;
  readonly value: number;
  readonly limit: number;
}

const { experts, kvHeads, columns } = VERSION_5_LIMITS;

const MODEL_ROWS: readonly (readonly [string, number, (config: ModelConfig) => number | undefined])[] = [
  ['hiddenDim', columns, ({ hiddenDim }) => hiddenDim],
  ['layers × perLayerInput.dim', columns, (c) => c.layers.length * (c.perLayerInput?.dim ?? 0)],
];
const LAYER_ROWS: readonly (readonly [string, number, (layer: LayerConfig) => number | undefined])[] = [
  ['attention.kvHeads', kvHeads, ({ attention }) => attention.kvHeads],
  ['attention.heads × headDim', columns, ({ attention }) => attention.heads * attention.headDim],
  ['ffn.dim', columns, ({ ffn }) => ffn?.dim],
  ['experts.count', experts, (layer) => layer.experts?.count],
  ['experts.topK', experts, (layer) => layer.experts?.topK],
  ['experts.dim', columns, (layer) => layer.experts?.dim],
];

/** The first count of each kind that version 5 cannot hold; undefined if it holds the model. */
export function beyondVersion5(config: ModelConfig): BeyondVersion5 | undefined {
  for (const [field, limit, of] of MODEL_ROWS) {
    const value = of(config) ?? 0;
    if (value > limit) return { field, value, limit };
  }
  for (const [index, layer] of config.layers.entries()) {
    for (const [field, limit, of] of LAYER_ROWS) {
      const value = of(layer) ?? 0;
      if (value > limit) return { field: `layers.${index}.${field}`, value, limit };
    }
  }
  return undefined;
}

/** The version that a model is written as unless another is asked for. */
export function defaultVersion(config: ModelConfig): FormatVersion {
  return beyondVersion5(config) ? 6 : 5;
}

/** What a field says that version 5 cannot hold. */
export function beyondInWords({ field, value, limit }: BeyondVersion5): string {
  return `${field} is ${value}, version 5 of the format holds at most ${limit}`;
}

/** @throws CflowError LIMIT_EXCEEDED if version 5 cannot hold the model */
export function requireVersion5(config: ModelConfig): void {
  const beyond = beyondVersion5(config);
  if (!beyond) return;
  const { value, limit } = beyond;
  throw new CflowError('LIMIT_EXCEEDED', beyondInWords(beyond), {
    value,
    limit,
    remedy: 'write version 6 (--format-version 6)',
  });
}
