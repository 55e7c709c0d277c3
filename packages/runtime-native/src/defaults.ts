/** Names and defaults that the command line shows; a module of its own, so that help loads no engine. */

/** Names of the engines. */
export const ENGINE_NAMES = ['native', 'reference'] as const;
/** One of `ENGINE_NAMES`. */
export type EngineName = (typeof ENGINE_NAMES)[number];

/** Tokens that `generate` makes unless `maxTokens` says otherwise. */
export const DEFAULT_MAX_TOKENS = 128;

/** Tokens of each document that `perplexity` scores unless `tokens` says otherwise. */
export const PERPLEXITY_TOKENS = 256;

/** Defaults of `SamplerOptions`, used if neither the caller nor the model sets an option. */
export const SAMPLER_DEFAULTS = { temperature: 0.8, topK: 40, topP: 0.95, minP: 0, typicalP: 1 } as const;
