import { CflowError, MAX_VOCAB, type Metadata } from '@cflow/format';
import { z } from 'zod';
import { isJsonObject, type JsonObject, type JsonValue, parseJsonObject } from '../json.js';
import { byteLevelTokenizer } from './byte-bpe.js';

export type Tokenizer = NonNullable<Metadata['tokenizer']>;

/** The tokenizer's files of a checkpoint, as far as they exist. */
export interface TokenizerFiles {
  tokenizerJson?: Uint8Array | undefined;
  tokenizerConfigJson?: Uint8Array | undefined;
  chatTemplate?: Uint8Array | undefined;
  /** chat_template.json, as processors have it. */
  chatTemplateJson?: Uint8Array | undefined;
  /** vocab.json and merges.txt, which stand in for tokenizer.json. */
  vocabJson?: Uint8Array | undefined;
  merges?: Uint8Array | undefined;
}

const namedTemplates = z.union([
  z.array(z.object({ name: z.string(), template: z.string() })),
  z
    .record(z.string(), z.string())
    .transform((named) => Object.entries(named).map(([name, template]) => ({ name, template }))),
]);

/**
 * What goes into the metadata: the texts as they were, the chat template from its own file, from tokenizer_config.json or
 * from chat_template.json, and the size of the vocabulary. Undefined without a tokenizer.json or what makes one.
 * @param note told of what is not taken
 * @throws CflowError CONFIG_INVALID for broken JSON (line and column), a tokenizer without a vocabulary, or ids beyond any
 */
export function readTokenizer(
  files: TokenizerFiles,
  at: (name: string) => string,
  note: (text: string) => void = () => undefined,
): Tokenizer | undefined {
  const settings =
    files.tokenizerConfigJson &&
    parseJsonObject(files.tokenizerConfigJson, { file: at('tokenizer_config.json') });
  const json = tokenizerJson(files, settings, at);
  if (!json) return undefined;
  const chatTemplate = files.chatTemplate
    ? text(files.chatTemplate)
    : (templateOf(settings?.chat_template, note) ?? templateOf(processorTemplate(files, at), note));
  const vocabSize = tokenizerVocabSize(json);
  if (vocabSize === 0) {
    throw new CflowError('CONFIG_INVALID', 'no vocabulary', {
      file: at('tokenizer.json'),
      field: 'model.vocab',
    });
  }
  if (!Number.isInteger(vocabSize) || vocabSize > MAX_VOCAB) {
    throw new CflowError('CONFIG_INVALID', `a token has the id ${vocabSize - 1}`, {
      file: at('tokenizer.json'),
      field: 'model.vocab',
      value: vocabSize - 1,
      limit: MAX_VOCAB - 1,
      remedy: `ids are whole numbers below ${MAX_VOCAB}`,
    });
  }
  return {
    tokenizerJson: files.tokenizerJson ? text(files.tokenizerJson) : JSON.stringify(json),
    ...(files.tokenizerConfigJson && { tokenizerConfigJson: text(files.tokenizerConfigJson) }),
    ...(chatTemplate !== undefined && { chatTemplate }),
    vocabSize,
  };
}

function tokenizerJson(
  { tokenizerJson, vocabJson, merges }: TokenizerFiles,
  settings: JsonObject | undefined,
  at: (name: string) => string,
): JsonObject | undefined {
  if (tokenizerJson) return parseJsonObject(tokenizerJson, { file: at('tokenizer.json') });
  if (!vocabJson || !merges) return undefined;
  const vocab = parseJsonObject(vocabJson, { file: at('vocab.json') });
  return byteLevelTokenizer(vocab, text(merges), settings ?? {}, at('merges.txt'));
}

/** Highest id + 1 over the vocabulary and the added tokens: what the tokenizer can produce; 0 for none. */
export function tokenizerVocabSize(json: JsonObject): number {
  const model = isJsonObject(json.model) ? json.model : {};
  const added = Array.isArray(json.added_tokens) ? json.added_tokens : [];
  const ids = [
    // Unigram vocabularies are lists of [token, score]; the position is the id.
    ...(Array.isArray(model.vocab) ? [model.vocab.length - 1] : [highest(Object.values(model.vocab ?? {}))]),
    highest(added.map((token) => (isJsonObject(token) ? token.id : undefined))),
  ];
  return highest(ids) + 1;
}

function highest(ids: readonly (JsonValue | undefined)[]): number {
  return ids.reduce<number>((most, id) => (typeof id === 'number' && id > most ? id : most), -1);
}

function processorTemplate(files: TokenizerFiles, at: (name: string) => string): JsonValue | undefined {
  if (!files.chatTemplateJson) return undefined;
  return parseJsonObject(files.chatTemplateJson, { file: at('chat_template.json') }).chat_template;
}

/** Characters of a value in messages. */
const MOST_SHOWN = 60;

/** Of several templates the one called default, as in transformers; which other one is meant is not guessed. */
function templateOf(template: JsonValue | undefined, note: (text: string) => void): string | undefined {
  if (typeof template === 'string') return template;
  if (template === undefined || template === null) return undefined;
  const { data: named } = namedTemplates.safeParse(template);
  if (!named) {
    const shown = JSON.stringify(template).slice(0, MOST_SHOWN);
    note(`no chat template was taken: chat_template is ${shown}, a text or a list of named ones is expected`);
    return undefined;
  }
  const chosen = named.find(({ name }) => name === 'default')?.template;
  if (chosen === undefined && named.length > 0) {
    const names = named.map(({ name }) => JSON.stringify(name)).join(', ');
    note(`no chat template was taken: none of ${names} is called "default"`);
  }
  return chosen;
}

function text(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}
