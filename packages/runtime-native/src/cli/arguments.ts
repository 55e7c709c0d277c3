/** Checks of the arguments of cflow-run, and what they become for the library. */

import { CflowError } from '@cflow/format/internal/errors.js';
import { parseBytes } from '#cli-kit/bytes.js';
import type { TemplateVariables } from '../chat/template.js';
import type { OpenModelOptions } from '../model.js';
import type { GenerateOptions } from '../session.js';
import type { Arguments } from './options.js';

/** Options of the native engine only. */
const NATIVE_OPTIONS = [
  'threads',
  'weights',
  'arithmetic',
  'cache',
  'profile',
  'memory',
  'context',
  'cache-memory',
  'spill-directory',
  'explain',
  'trace',
  'expert-slots',
  'stream-slots',
  'half-life',
  'io-block',
  'io-depth',
  'io-backend',
  'io-mode',
] as const;

/** Options of `Model.open`. @throws CflowError USAGE */
export function openOptions(args: Arguments): OpenModelOptions {
  const { engine, threads, weights, arithmetic, cache, profile, context, transfers, trace } = args;
  const { memory, cacheMemory, spillDirectory, expertSlots, streamSlots, halfLife, ioBlock } = args;
  const direct = {
    expertSlots,
    streamSlots,
    halfLife,
    block: ioBlock === undefined ? undefined : parseBytes(ioBlock, '--io-block'),
    depth: args.ioDepth,
    backend: args.ioBackend,
    mode: args.ioMode,
  };
  const given = Object.fromEntries(Object.entries(direct).filter(([, value]) => value !== undefined));
  return {
    engine,
    threads,
    weights,
    arithmetic,
    cache,
    profile,
    context,
    transfers,
    memory: memory === undefined ? undefined : parseBytes(memory, '--memory'),
    cacheMemory: cacheMemory === undefined ? undefined : parseBytes(cacheMemory, '--cache-memory'),
    spillDirectory,
    recordRoutings: trace !== undefined,
    ...(Object.keys(given).length > 0 && { direct: given }),
  };
}

/** @throws CflowError USAGE for combinations and values that the parser accepts */
export function checkArguments(args: Arguments): void {
  const tasks = ['prompt', 'prompt-file', 'ids', 'perplexity'].filter((name) => args[name] !== undefined);
  // A conversation takes its first message from the prompt, or everything from the input.
  const fits = args.chat
    ? tasks.length === 0 || (tasks.length === 1 && tasks[0]!.startsWith('prompt'))
    : tasks.length === 1;
  if (!fits) {
    throw new CflowError(
      'USAGE',
      'give exactly one of --prompt, --prompt-file, --ids and --perplexity, or --chat',
      args.chat ? { remedy: '--chat can be combined with --prompt or --prompt-file only' } : {},
    );
  }
  const chatOnly = (['system', 'template-option'] as const).find((name) => args[name] !== undefined);
  if (chatOnly && !args.chat) throw new CflowError('USAGE', 'requires --chat', { field: `--${chatOnly}` });
  if (args.logprobs !== undefined && !args.json) {
    throw new CflowError('USAGE', 'requires --json', { field: '--logprobs' });
  }
  const ignored = NATIVE_OPTIONS.find((name) => args[name] !== undefined && args[name] !== false);
  if (args.engine === 'reference' && ignored) {
    throw new CflowError('USAGE', 'not applicable to the reference engine', {
      field: `--${ignored}`,
      remedy: 'leave it out, or use --engine native',
    });
  }
  const { maxTokens, documents, tokens, threads } = args;
  const counts = { 'max-tokens': maxTokens, documents, tokens, threads };
  for (const [name, value] of Object.entries(counts)) {
    if (value === undefined || (Number.isInteger(value) && value > 0)) continue;
    throw new CflowError('USAGE', `${value} is not a whole number above 0`, { field: `--${name}`, value });
  }
  for (const name of NUMBERS) {
    if (Number.isNaN(args[name])) throw new CflowError('USAGE', 'not a number', { field: name });
  }
}

const NUMBERS = [
  ...(['temperature', 'topK', 'topP', 'minP', 'typicalP', 'seed', 'logprobs'] as const),
  ...(['repetitionPenalty', 'frequencyPenalty', 'presencePenalty'] as const),
] as const;

/** Options of `Session.generate`. @throws CflowError USAGE */
export function generateOptions(args: Arguments): Omit<GenerateOptions, 'ids' | 'signal'> {
  const { maxTokens, ignoreEos, stop, logprobs, logitBias } = args;
  const { temperature, topK, topP, minP, typicalP, seed } = args;
  const { repetitionPenalty, frequencyPenalty, presencePenalty } = args;
  return {
    ...{ maxTokens, ignoreEos, stop, logprobs, temperature, topK, topP, minP, typicalP, seed },
    ...{ repetitionPenalty, frequencyPenalty, presencePenalty },
    logitBias: logitBias === undefined ? undefined : parseBias(logitBias),
  };
}

function parseBias(list: string): Record<number, number> {
  const pairs = list.split(',').map((pair) => /^\s*(\d+)\s*=\s*(-?\d+(?:\.\d+)?)\s*$/.exec(pair));
  if (pairs.every((pair) => pair !== null))
    return Object.fromEntries(pairs.map((pair) => [Number(pair[1]), Number(pair[2])]));
  throw new CflowError('USAGE', `${JSON.stringify(list)} is not a list like 15=-100,27=2.5`, {
    field: '--logit-bias',
  });
}

/** Variables of a chat template; a value that is not JSON is a string. */
export function templateVariables({
  templateOption = [],
}: {
  readonly templateOption?: readonly string[] | undefined;
}): TemplateVariables {
  const pairs = templateOption.map((pair) => {
    const [, name, value] = /^([A-Za-z_]\w*)=(.*)$/s.exec(pair) ?? [];
    if (name !== undefined && value !== undefined) return [name, jsonOrText(value)] as const;
    throw new CflowError('USAGE', `${JSON.stringify(pair)} is not like enable_thinking=false`, {
      field: '--template-option',
    });
  });
  return Object.fromEntries(pairs);
}

function jsonOrText(value: string): unknown {
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}
