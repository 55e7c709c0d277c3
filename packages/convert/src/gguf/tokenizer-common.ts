/** What tokenizer.json and tokenizer.ggml.* have in common. */

/** Token types of llama.cpp. */
export const TOKEN_TYPES = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

const CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const LETTERS = '[^\\r\\n\\p{L}\\p{N}]?\\p{L}+';
const REST = ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

const SLASHES = ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

/** Words that may begin with capitals, or be all capitals. */
const UPPER = '\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}';
const LOWER = '\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}';
const cased = (end: string) =>
  `[^\\r\\n\\p{L}\\p{N}]?[${UPPER}]*[${LOWER}]+${end}|[^\\r\\n\\p{L}\\p{N}]?[${UPPER}]+[${LOWER}]*${end}`;
const CASED = cased('');
const CASED_CONTRACTED = cased(`${CONTRACTIONS}?`);

const GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)";
const DEEPSEEK_FIRST = ['\\p{N}{1,3}', '[一-龥぀-ゟ゠-ヿ]+'];
const DEEPSEEK_V3 =
  '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

/** How text is cut before merging. */
export interface PreTokenizer {
  /** tokenizer.ggml.pre; the first row that fits is written. */
  readonly pre: string;
  /** The regular expression of tokenizer.json; absent: that of GPT-2, which ByteLevel has built in. */
  readonly pattern?: string;
  /** Digits stand alone. */
  readonly digits?: boolean;
  /** Regular expressions that cut before the pattern does. */
  readonly first?: readonly string[];
  /** BOS goes in front of a text unless the file says otherwise. */
  readonly addsBos?: boolean;
  /** A piece that is in the vocabulary is not merged up to: model.ignore_merges. */
  readonly ignoreMerges: boolean;
}

/** Those of llama.cpp that our families use. */
export const PRE_TOKENIZERS: readonly PreTokenizer[] = [
  {
    pre: 'llama-bpe',
    pattern: `${CONTRACTIONS}|${LETTERS}|\\p{N}{1,3}|${REST}`,
    ignoreMerges: true,
    addsBos: true,
  },
  { pre: 'dbrx', pattern: `${CONTRACTIONS}|${LETTERS}|\\p{N}{1,3}|${REST}`, ignoreMerges: false },
  { pre: 'qwen2', pattern: `${CONTRACTIONS}|${LETTERS}|\\p{N}|${REST}`, ignoreMerges: false },
  { pre: 'gpt-2', ignoreMerges: false },
  { pre: 'olmo', ignoreMerges: false },
  { pre: 'smollm', digits: true, ignoreMerges: false },
  { pre: 'default', ignoreMerges: false },
  {
    pre: 'tekken',
    pattern: `${CASED}|\\p{N}|${SLASHES}`,
    ignoreMerges: true,
    addsBos: true,
  },
  { pre: 'gpt-4o', pattern: `${CASED_CONTRACTED}|\\p{N}{1,3}|${SLASHES}`, ignoreMerges: false },
  { pre: 'deepseek-v3', first: DEEPSEEK_FIRST, pattern: DEEPSEEK_V3, ignoreMerges: false },
  {
    pre: 'falcon',
    first: ['[\\p{P}\\$\\+<=>\\^~\\|`]+', GPT2],
    pattern: '[0-9][0-9][0-9]',
    ignoreMerges: false,
  },
];

/** Other names of the same pre-tokenizers, as llama.cpp reads them. */
const SAME_AS: Readonly<Record<string, string>> = {
  ...Object.fromEntries(
    ['llama3', 'llama-v3', 'falcon3', 'falcon-h1', 'pixtral', 'midm-2.0', 'lfm2'].map((name) => [
      name,
      'llama-bpe',
    ]),
  ),
  ...{ 'smaug-bpe': 'dbrx', 'chatglm-bpe': 'dbrx', glm4: 'dbrx', megrez: 'qwen2' },
  ...{ 'deepseek-r1-qwen': 'qwen2', stablelm2: 'qwen2', llama4: 'gpt-4o' },
  ...{ mpt: 'gpt-2', 'phi-2': 'gpt-2', jais: 'gpt-2', 'roberta-bpe': 'gpt-2', gigachat: 'gpt-2' },
  ...{ starcoder: 'smollm', refact: 'smollm', 'command-r': 'smollm', codeshell: 'smollm' },
  ...{ exaone: 'smollm', 'minerva-7b': 'smollm' },
};

/** The row of a name; undefined for one that is not known. */
export function preTokenizer(name: unknown): PreTokenizer | undefined {
  const known = typeof name === 'string' && Object.hasOwn(SAME_AS, name) ? SAME_AS[name] : name;
  return PRE_TOKENIZERS.find(({ pre }) => pre === known);
}

/** `<0x0A>` → 10; undefined for other tokens. */
export function byteOf(token: string): number | undefined {
  const digits = /^<0x([0-9A-F]{2})>$/.exec(token)?.[1];
  return digits === undefined ? undefined : Number.parseInt(digits, 16);
}

/** How sentencepiece writes a space. */
export const SPACE = '▁';
