/** tokenizer.json → tokenizer.ggml.*: what llama.cpp tokenizes by. */
import { CflowError, type Metadata, type ModelConfig } from '@cflow/format';
import { z } from 'zod';
import { EOS_IDS_KEY } from './keys.js';
import type { GgufEntry } from './schema.js';
import { byteOf, DIGIT, PRE_TOKENIZERS, SPACE, TOKEN_TYPES } from './tokenizer-common.js';
import { placeholderTokenizer } from './tokenizer-placeholder.js';

type Tokenizer = NonNullable<Metadata['tokenizer']>;

/** The metadata that is a tokenizer to llama.cpp, and what it loses. */
export interface TokenizerEntries {
  readonly entries: readonly GgufEntry[];
  readonly notes: readonly string[];
}

const step = z.looseObject({ type: z.string() });
type Step = z.output<typeof step>;
/** What is read of tokenizer.json. */
const schema = z.looseObject({
  added_tokens: z
    .array(z.looseObject({ id: z.int().min(0), content: z.string(), special: z.boolean().default(false) }))
    .default([]),
  normalizer: step.nullish(),
  pre_tokenizer: step.nullish(),
  post_processor: step.nullish(),
  model: z.looseObject({
    type: z.string().optional(),
    vocab: z.record(z.string(), z.int().min(0)),
    merges: z.array(z.union([z.string(), z.tuple([z.string(), z.string()])])),
    byte_fallback: z.boolean().nullish(),
    ignore_merges: z.boolean().nullish(),
    unk_token: z.string().nullish(),
  }),
});
type Json = z.output<typeof schema>;
type Merge = readonly [string, string];

/** eos, eot and eom. */
const ENDS = 3;
/** tokenizer_config.json, as it was. */
export const TOKENIZER_CONFIG = 'huggingface.config';

/** Entries of a file without a tokenizer: token ids are all that it can be given. */
function without(why: string, config: ModelConfig): TokenizerEntries {
  return {
    entries: placeholderTokenizer(config),
    notes: [`the GGUF has no tokenizer, and takes token ids only: ${why}`, ...endNotes(config)],
  };
}

/** The tokenizer's entries for a model; one that llama.cpp does not know is left out, with a note. */
export function exportTokenizer(tokenizer: Tokenizer | undefined, config: ModelConfig): TokenizerEntries {
  if (!tokenizer) return without('the model has none', config);
  const parsed = schema.safeParse(JSON.parse(tokenizer.tokenizerJson));
  if (!parsed.success || (parsed.data.model.type ?? 'BPE') !== 'BPE') return without('it is no BPE', config);
  const json = parsed.data;
  const merges = json.model.merges.map(
    (merge): Merge => (typeof merge === 'string' ? (merge.split(' ', 2) as [string, string]) : merge),
  );
  const kind = json.model.byte_fallback ? sentencePiece(json, merges) : byteLevel(json, merges);
  if (typeof kind === 'string') return without(kind, config);
  const { tokens, types, dropped } = vocabulary(json, config.vocabSize);
  const text = (key: string, value: string): GgufEntry => [`tokenizer.${key}`, 'string', value];
  return {
    entries: [
      text('ggml.model', kind.model),
      ['tokenizer.ggml.tokens', 'array', tokens, 'string'],
      ...(kind.scores
        ? ([['tokenizer.ggml.scores', 'array', tokens.map(kind.scores), 'f32']] as GgufEntry[])
        : []),
      ['tokenizer.ggml.token_type', 'array', types, 'i32'],
      ...kind.entries,
      ...specialTokens(json, tokenizer, config),
      text('huggingface.json', tokenizer.tokenizerJson),
      ...(tokenizer.tokenizerConfigJson === undefined
        ? []
        : [text(TOKENIZER_CONFIG, tokenizer.tokenizerConfigJson)]),
      ...(tokenizer.chatTemplate === undefined ? [] : [text('chat_template', tokenizer.chatTemplate)]),
    ],
    notes: [
      ...(dropped
        ? [`${dropped} tokens beyond the ${config.vocabSize} rows of the embedding were left out`]
        : []),
      ...endNotes(config),
    ],
  };
}

function endNotes({ eosTokenIds }: ModelConfig): string[] {
  if (eosTokenIds.length <= ENDS) return [];
  return [`other programs read ${ENDS} of the ${eosTokenIds.length} ids that end a text`];
}

/** One token for every row of the embedding; rows without one get a name that no text has. */
function vocabulary(json: Json, rows: number) {
  const tokens: (string | undefined)[] = new Array(rows).fill(undefined);
  const types: number[] = new Array(rows).fill(TOKEN_TYPES.unused);
  let dropped = 0;
  const put = (token: string, id: number, type: number) => {
    if (id >= rows) dropped++;
    else [tokens[id], types[id]] = [token, type];
  };
  for (const [token, id] of Object.entries(json.model.vocab)) {
    const isByte = json.model.byte_fallback && byteOf(token) !== undefined;
    put(token, id, isByte ? TOKEN_TYPES.byte : TOKEN_TYPES.normal);
  }
  for (const { id, content, special } of json.added_tokens) {
    const unknown = content === json.model.unk_token;
    const type = unknown ? TOKEN_TYPES.unknown : special ? TOKEN_TYPES.control : TOKEN_TYPES.userDefined;
    put(content, id, type);
  }
  return { tokens: tokens.map((token, id) => token ?? `[PAD${id}]`), types, dropped };
}

interface Kind {
  readonly model: string;
  readonly entries: readonly GgufEntry[];
  readonly scores?: (token: string, id: number) => number;
}

/**
 * llama.cpp merges the pair whose joint token has the highest score; the rank of the first merge that makes a token is
 * that order. What no merge makes comes last.
 */
function sentencePiece(json: Json, merges: readonly Merge[]): Kind | string {
  const ranks = new Map<string, number>();
  for (const [rank, [left, right]] of merges.entries()) {
    if (!ranks.has(left + right)) ranks.set(left + right, rank);
  }
  const steps = stepsOf(json.normalizer, 'normalizers');
  const pre = stepsOf(json.pre_tokenizer, 'pretokenizers');
  const metaspace = pre.find(({ type }) => type === 'Metaspace');
  const spaces = steps.some(({ type, content }) => type === 'Replace' && content === SPACE) || metaspace;
  if (!spaces) return 'it falls back to bytes, but does not write spaces as sentencepiece does';
  const prepends =
    steps.some(({ type }) => type === 'Prepend') ||
    (metaspace && (metaspace.prepend_scheme ?? 'always') !== 'never' && metaspace.add_prefix_space !== false);
  return {
    model: 'llama',
    scores: (token) => -(ranks.get(token) ?? merges.length),
    entries: [['tokenizer.ggml.add_space_prefix', 'bool', Boolean(prepends)]],
  };
}

function byteLevel(json: Json, merges: readonly Merge[]): Kind | string {
  const pre = preTokenizerOf(json);
  if (!pre) return 'llama.cpp has no pre-tokenizer for it here';
  return {
    model: 'gpt2',
    entries: [
      ['tokenizer.ggml.pre', 'string', pre],
      ['tokenizer.ggml.merges', 'array', merges.map(([left, right]) => `${left} ${right}`), 'string'],
    ],
  };
}

/** The steps of a Sequence, or the only step. */
function stepsOf(of: Step | null | undefined, inner: string): readonly Step[] {
  if (!of) return [];
  return of.type === 'Sequence' ? (z.array(step).safeParse(of[inner]).data ?? []) : [of];
}

function preTokenizerOf(json: Json): string | undefined {
  const steps = stepsOf(json.pre_tokenizer, 'pretokenizers');
  const byteLevel = steps.at(-1);
  if (byteLevel?.type !== 'ByteLevel') return undefined;
  const splits = steps.slice(0, -1).map(splitOf);
  const gpt2 = byteLevel.use_regex !== false;
  const ignoreMerges = json.model.ignore_merges ?? false;
  return PRE_TOKENIZERS.find(
    (row) =>
      row.splits.length === splits.length &&
      row.splits.every((pattern, i) => pattern === splits[i]) &&
      (row.gpt2 ?? false) === gpt2 &&
      (row.ignoreMerges ?? false) === ignoreMerges,
  )?.pre;
}

/** The regular expression of a step that cuts; undefined for other steps. */
function splitOf({ type, pattern, individual_digits }: Step): string | undefined {
  if (type === 'Digits') return individual_digits === true ? DIGIT : undefined;
  if (type !== 'Split') return undefined;
  return z.looseObject({ Regex: z.string() }).safeParse(pattern).data?.Regex;
}

/** Ids that the configuration, tokenizer_config.json or the post-processor name, as far as the embedding has rows. */
function specialTokens(json: Json, tokenizer: Tokenizer, config: ModelConfig): GgufEntry[] {
  const settings = settingsOf(tokenizer);
  const idOf = (token: unknown) => {
    const content =
      typeof token === 'string' ? token : (token as { content?: string } | null | undefined)?.content;
    if (content === undefined) return undefined;
    return json.added_tokens.find((added) => added.content === content)?.id ?? json.model.vocab[content];
  };
  const ids: Record<string, number | undefined> = {
    bos: config.bosTokenId ?? idOf(settings.bos_token),
    eos: config.eosTokenIds[0] ?? idOf(settings.eos_token),
    eot: config.eosTokenIds[1],
    eom: config.eosTokenIds[2],
    unknown: idOf(json.model.unk_token ?? settings.unk_token),
    padding: idOf(settings.pad_token),
  };
  const [first, last] = wrapping(json);
  const id = (name: string): GgufEntry[] => {
    const value = ids[name];
    if (value === undefined || value >= config.vocabSize) return [];
    return [[`tokenizer.ggml.${name}_token_id`, 'u32', value]];
  };
  return [
    ...Object.keys(ids).flatMap(id),
    ...(config.eosTokenIds.length > 0
      ? ([[EOS_IDS_KEY, 'array', config.eosTokenIds, 'u32']] as GgufEntry[])
      : []),
    ['tokenizer.ggml.add_bos_token', 'bool', first !== undefined && idOf(first) === ids.bos],
    ['tokenizer.ggml.add_eos_token', 'bool', last !== undefined && idOf(last) === ids.eos],
  ];
}

function settingsOf({ tokenizerConfigJson }: Tokenizer): Record<string, unknown> {
  try {
    return JSON.parse(tokenizerConfigJson ?? '{}') as Record<string, unknown>;
  } catch (cause) {
    throw new CflowError('CONFIG_INVALID', 'not JSON', { file: 'tokenizer_config.json', cause });
  }
}

const template = z.array(
  z.union([
    z.looseObject({ SpecialToken: z.looseObject({ id: z.string() }) }),
    z.looseObject({ Sequence: z.unknown() }),
  ]),
);

/** The special tokens that the post-processor puts before and behind a text. */
function wrapping(json: Json): [string | undefined, string | undefined] {
  const post = stepsOf(json.post_processor, 'processors').find(({ type }) => type === 'TemplateProcessing');
  const single = template.safeParse(post?.single).data ?? [];
  const ends = [single[0], single.length > 1 ? single.at(-1) : undefined].map((each) => {
    const parsed = z.looseObject({ SpecialToken: z.looseObject({ id: z.string() }) }).safeParse(each);
    return parsed.data?.SpecialToken.id;
  });
  return [ends[0], ends[1]];
}
