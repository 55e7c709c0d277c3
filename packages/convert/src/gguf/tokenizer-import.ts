/** tokenizer.ggml.* → tokenizer.json, as far as the one says what the other needs. */
import { CflowError, type Metadata } from '@cflow/format';
import { readTokenizer } from '../sources/tokenizer.js';
import type { GgufValue } from './schema.js';
import { byteOf, preTokenizer, SPACE, TOKEN_TYPES } from './tokenizer-common.js';
import { TOKENIZER_CONFIG } from './tokenizer-export.js';
import { PLACEHOLDER, PLACEHOLDER_KEY } from './tokenizer-placeholder.js';

type Tokenizer = NonNullable<Metadata['tokenizer']>;
type Values = ReadonlyMap<string, GgufValue>;

/** What was made of a GGUF's tokenizer, and what was not. */
export interface ImportedTokenizer {
  readonly tokenizer?: Tokenizer;
  readonly notes: readonly string[];
}

/**
 * The tokenizer of a GGUF file: the original tokenizer.json where the file carries it, else one made from its tokens.
 * One of another kind is left out, with a note.
 * @throws CflowError CONFIG_INVALID for tokens, types and scores that do not belong together
 */
export function importTokenizer(values: Values, file: string): ImportedTokenizer {
  if (values.get(PLACEHOLDER_KEY) === PLACEHOLDER) return { notes: [] };
  const original = values.get('tokenizer.huggingface.json');
  const template = values.get('tokenizer.chat_template');
  const made = typeof original === 'string' && original !== '' ? original : madeJson(values, file);
  if (made === undefined) return { notes: [`no tokenizer: ${whyNot(values)}; the file takes token ids`] };
  const config = values.get(`tokenizer.${TOKENIZER_CONFIG}`);
  const bytes = (text: string) => new TextEncoder().encode(text);
  const tokenizer = readTokenizer(
    {
      tokenizerJson: bytes(made),
      tokenizerConfigJson: bytes(typeof config === 'string' ? config : namedTokens(values)),
      ...(typeof template === 'string' && { chatTemplate: bytes(template) }),
    },
    (name) => `${file}: ${name}`,
  );
  const guessed =
    made !== original && values.get('tokenizer.ggml.model') === 'gpt2' && !values.has('tokenizer.ggml.pre');
  const notes = guessed
    ? [
        `tokenizer.ggml.pre is missing: texts are cut as by llama.cpp's ${DEFAULT}, which may not be the model's`,
      ]
    : [];
  return tokenizer ? { tokenizer, notes } : { notes: [] };
}

function whyNot(values: Values): string {
  const model = values.get('tokenizer.ggml.model') ?? 'none';
  if (model !== 'gpt2') return `of the kinds in GGUF ${JSON.stringify(model)} is not read`;
  const pre = values.get('tokenizer.ggml.pre') ?? DEFAULT;
  return `the pre-tokenizer ${JSON.stringify(pre)} (tokenizer.ggml.pre) is not known, or its merges are missing`;
}

/** tokenizer_config.json as far as the keys say: templates name these tokens. */
function namedTokens(values: Values): string {
  const tokens: unknown = values.get('tokenizer.ggml.tokens');
  const named = { bos_token: 'bos', eos_token: 'eos', unk_token: 'unknown', pad_token: 'padding' };
  const entries = Object.entries(named).flatMap(([field, key]) => {
    const id = values.get(`tokenizer.ggml.${key}_token_id`);
    const token: unknown = Array.isArray(tokens) && typeof id === 'number' ? tokens[id] : undefined;
    return typeof token === 'string' ? [[field, token]] : [];
  });
  return JSON.stringify(Object.fromEntries(entries));
}

interface Vocabulary {
  readonly values: Values;
  readonly file: string;
  readonly tokens: readonly string[];
  readonly types: readonly number[];
}

const MODELS: Readonly<Record<string, (vocabulary: Vocabulary) => object | undefined>> = {
  llama: sentencePieceJson,
  gpt2: byteLevelJson,
};

function madeJson(values: Values, file: string): string | undefined {
  const model = values.get('tokenizer.ggml.model');
  const make = typeof model === 'string' && Object.hasOwn(MODELS, model) ? MODELS[model] : undefined;
  if (!make) return undefined;
  const tokens = list(values, 'tokens', isText, file) ?? [];
  const types = list(values, 'token_type', isNumber, file) ?? tokens.map(() => TOKEN_TYPES.normal);
  sameLength('token_type', types, tokens, file);
  const json = make({ values, file, tokens, types });
  return json && JSON.stringify(json);
}

/** What llama.cpp takes where a file names no pre-tokenizer. */
const DEFAULT = 'default';

const isText = (value: unknown): value is string => typeof value === 'string';
const isNumber = (value: unknown): value is number => typeof value === 'number';

function list<T>(
  values: Values,
  key: string,
  isItem: (value: unknown) => value is T,
  file: string,
): readonly T[] | undefined {
  const field = `tokenizer.ggml.${key}`;
  const value: unknown = values.get(field);
  if (value === undefined) return undefined;
  if (Array.isArray(value) && value.every(isItem)) return value;
  throw new CflowError('CONFIG_INVALID', 'not a list of what it should hold', { file, field });
}

function sameLength(key: string, a: readonly unknown[], tokens: readonly unknown[], file: string): void {
  if (a.length === tokens.length) return;
  throw new CflowError('CONFIG_INVALID', `${a.length} for ${tokens.length} tokens`, {
    file,
    field: `tokenizer.ggml.${key}`,
  });
}

/** Unused tokens are rows of the embedding without a meaning; the first of equal tokens counts. */
function vocabOf({ tokens, types }: Vocabulary): Map<string, number> {
  const vocab = new Map<string, number>();
  for (const [id, token] of tokens.entries()) {
    if (types[id] !== TOKEN_TYPES.unused && !vocab.has(token)) vocab.set(token, id);
  }
  return vocab;
}

function addedTokens({ tokens, types }: Vocabulary): object[] {
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false };
  return tokens.flatMap((content, id) => {
    const type = types[id];
    const special = type === TOKEN_TYPES.control || type === TOKEN_TYPES.unknown;
    return special || type === TOKEN_TYPES.userDefined ? [{ id, content, ...flags, special }] : [];
  });
}

function tokenAt({ values, tokens }: Vocabulary, key: string): string | undefined {
  const id = values.get(`tokenizer.ggml.${key}_token_id`);
  return typeof id === 'number' ? tokens[id] : undefined;
}

/** Puts BOS before and EOS behind a text, as far as the file asks for them. */
function postProcessor(vocabulary: Vocabulary, otherwiseBos: boolean): object | null {
  const { values } = vocabulary;
  const bos =
    (values.get('tokenizer.ggml.add_bos_token') ?? otherwiseBos) ? tokenAt(vocabulary, 'bos') : undefined;
  const eos = values.get('tokenizer.ggml.add_eos_token') ? tokenAt(vocabulary, 'eos') : undefined;
  const ends = [bos, eos].filter((token) => token !== undefined);
  if (ends.length === 0) return null;
  const special = (token: string | undefined, type_id: number) =>
    token === undefined ? [] : [{ SpecialToken: { id: token, type_id } }];
  const around = (id: string, type_id: number) => [
    ...special(bos, type_id),
    { Sequence: { id, type_id } },
    ...special(eos, type_id),
  ];
  return {
    type: 'TemplateProcessing',
    single: around('A', 0),
    pair: [...around('A', 0), ...around('B', 1)],
    special_tokens: Object.fromEntries(
      ends.map((token) => [token, { id: token, ids: [vocabulary.tokens.indexOf(token)], tokens: [token] }]),
    ),
  };
}

const FRAME = { version: '1.0', truncation: null, padding: null };

function sentencePieceJson(vocabulary: Vocabulary): object {
  const { values, file, tokens, types } = vocabulary;
  const scores = list(values, 'scores', isNumber, file) ?? tokens.map((_, id) => -id);
  sameLength('scores', scores, tokens, file);
  const vocab = vocabOf(vocabulary);
  const prefix = values.get('tokenizer.ggml.add_space_prefix') ?? true;
  const replaceSpaces = { type: 'Replace', pattern: { String: ' ' }, content: SPACE };
  const strip = prefix ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : [];
  return {
    ...FRAME,
    added_tokens: addedTokens(vocabulary),
    normalizer: prefix
      ? { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: SPACE }, replaceSpaces] }
      : replaceSpaces,
    pre_tokenizer: null,
    post_processor: postProcessor(vocabulary, true),
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: SPACE }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        ...strip,
      ],
    },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: tokenAt(vocabulary, 'unknown') ?? tokens[types.indexOf(TOKEN_TYPES.unknown)] ?? null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: true,
      byte_fallback: tokens.some((token) => byteOf(token) !== undefined),
      ignore_merges: false,
      vocab: Object.fromEntries(vocab),
      merges: mergesOf(vocabulary, vocab, scores),
    },
  };
}

/** Every cut of a token into two others, best token first; of one token in the order of the parts' ids. */
function mergesOf(
  { tokens, types }: Vocabulary,
  vocab: ReadonlyMap<string, number>,
  scores: readonly number[],
): [string, string][] {
  const ranked = tokens.map((_, id) => id).filter((id) => types[id] === TOKEN_TYPES.normal);
  ranked.sort((a, b) => scores[b]! - scores[a]! || a - b);
  return ranked.flatMap((id) => {
    const characters = [...tokens[id]!];
    const cuts: [string, string][] = [];
    for (let at = 1; at < characters.length; at++) {
      const cut: [string, string] = [characters.slice(0, at).join(''), characters.slice(at).join('')];
      if (cut.every((part) => types[vocab.get(part) ?? -1] === TOKEN_TYPES.normal)) cuts.push(cut);
    }
    const order = ([left, right]: [string, string]) => [vocab.get(left)!, vocab.get(right)!] as const;
    return cuts.sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1]);
  });
}

function byteLevelJson(vocabulary: Vocabulary): object | undefined {
  const { values, file } = vocabulary;
  const pre = preTokenizer(values.get('tokenizer.ggml.pre') ?? DEFAULT);
  const merges = list(values, 'merges', isText, file);
  if (!pre || !merges) return undefined;
  const split = (pattern: string) => ({
    type: 'Split',
    pattern: { Regex: pattern },
    behavior: 'Isolated',
    invert: false,
  });
  const steps = [
    ...pre.splits.map(split),
    { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: pre.gpt2 ?? false },
  ];
  return {
    ...FRAME,
    added_tokens: addedTokens(vocabulary),
    normalizer: null,
    pre_tokenizer: { type: 'Sequence', pretokenizers: steps },
    post_processor: postProcessor(vocabulary, pre.addsBos ?? false),
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: pre.ignoreMerges ?? false,
      vocab: Object.fromEntries(vocabOf(vocabulary)),
      merges: merges.map((merge) => merge.split(' ', 2)),
    },
  };
}
