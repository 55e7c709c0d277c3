/** tokenizer.json out of vocab.json and merges.txt: byte-level BPE as of GPT-2, saved before tokenizer.json existed. */
import { CflowError } from '@cflow/format';
import { isJsonObject, type JsonObject, type JsonValue } from '../json.js';

/** How a text is cut before the merges, by `tokenizer_class`; null: the regular expression of GPT-2. */
const QWEN =
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const CLASSES: Readonly<Record<string, { readonly cut: string | null; readonly nfc: boolean }>> = {
  GPT2Tokenizer: { cut: null, nfc: false },
  Qwen2Tokenizer: { cut: QWEN, nfc: true },
};

/**
 * @param vocab vocab.json: token → id
 * @param merges merges.txt: a pair on each line, a line `#version` in front
 * @param settings tokenizer_config.json; its class says how texts are cut, its `added_tokens_decoder` what is whole
 * @throws CflowError UNSUPPORTED for a class whose cut is not known, CONFIG_INVALID for a merge that is no pair
 */
export function byteLevelTokenizer(
  vocab: JsonObject,
  merges: string,
  settings: JsonObject,
  file: string,
): JsonObject {
  const name = String(settings.tokenizer_class ?? 'GPT2Tokenizer').replace(/Fast$/, '');
  const found = Object.hasOwn(CLASSES, name) ? CLASSES[name] : undefined;
  if (!found) {
    throw new CflowError('UNSUPPORTED', `vocab.json of a ${name} without a tokenizer.json`, {
      file,
      field: 'tokenizer_class',
      value: name,
      limit: Object.keys(CLASSES),
      remedy: 'save the tokenizer with save_pretrained, which writes tokenizer.json',
    });
  }
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true };
  const cut: JsonValue =
    found.cut === null
      ? { ...byteLevel, use_regex: true }
      : {
          type: 'Sequence',
          pretokenizers: [
            { type: 'Split', pattern: { Regex: found.cut }, behavior: 'Isolated', invert: false },
            { ...byteLevel, use_regex: false },
          ],
        };
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: addedTokens(vocab, settings),
    normalizer: found.nfc ? { type: 'NFC' } : null,
    pre_tokenizer: cut,
    post_processor: null,
    decoder: { ...byteLevel, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: '',
      end_of_word_suffix: '',
      fuse_unk: false,
      byte_fallback: false,
      vocab,
      merges: mergePairs(merges, file),
    },
  };
}

function mergePairs(text: string, file: string): string[] {
  const lines = text.split('\n').map((line) => line.replace(/\r$/, ''));
  const from = lines[0]?.startsWith('#version') ? 1 : 0;
  const pairs = lines.slice(from).filter((line) => line !== '');
  const bad = pairs.findIndex((line) => !/^\S+ \S+$/.test(line));
  if (bad < 0) return pairs;
  throw new CflowError('CONFIG_INVALID', `${JSON.stringify(pairs[bad])} is not a pair of tokens`, {
    file,
    field: `line ${bad + from + 1}`,
  });
}

/** Tokens that are never cut: those that tokenizer_config.json lists, else GPT-2's end of text. */
function addedTokens(vocab: JsonObject, settings: JsonObject): JsonValue[] {
  const listed = isJsonObject(settings.added_tokens_decoder) ? settings.added_tokens_decoder : {};
  const added = Object.entries(listed).flatMap(([id, token]) =>
    isJsonObject(token) ? [{ special: true, ...token, id: Number(id) } as JsonObject] : [],
  );
  if (added.length > 0) return added;
  const end = '<|endoftext|>';
  return typeof vocab[end] === 'number' ? [{ id: vocab[end], content: end, special: true }] : [];
}
