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
/** Digits stand alone, those of every script; tokenizer.json may say it as a step of the type Digits. */
export const DIGIT = '\\p{N}';
const DEEPSEEK_V3 =
  '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

/** How text is cut before merging. */
export interface PreTokenizer {
  /** tokenizer.ggml.pre; the first row that fits is written. */
  readonly pre: string;
  /** Regular expressions, each of which cuts what those before it left. */
  readonly splits: readonly string[];
  /** Whether that of GPT-2 cuts behind them, which the ByteLevel of tokenizer.json has built in. */
  readonly gpt2?: true;
  /** BOS goes in front of a text unless the file says otherwise. */
  readonly addsBos?: true;
  /** A piece that is in the vocabulary is not merged up to: model.ignore_merges. */
  readonly ignoreMerges?: true;
}

/** Those of llama.cpp that our families use. */
export const PRE_TOKENIZERS: readonly PreTokenizer[] = [
  {
    pre: 'llama-bpe',
    splits: [`${CONTRACTIONS}|${LETTERS}|\\p{N}{1,3}|${REST}`],
    ignoreMerges: true,
    addsBos: true,
  },
  { pre: 'dbrx', splits: [`${CONTRACTIONS}|${LETTERS}|\\p{N}{1,3}|${REST}`] },
  { pre: 'qwen2', splits: [`${CONTRACTIONS}|${LETTERS}|\\p{N}|${REST}`] },
  { pre: 'gpt-2', splits: [], gpt2: true },
  { pre: 'olmo', splits: [], gpt2: true },
  { pre: 'smollm', splits: [DIGIT], gpt2: true },
  { pre: 'default', splits: ['[\\p{P}\\$\\+<=>\\^~\\|]+', GPT2, '\\p{N}+', '[0-9][0-9][0-9]'] },
  { pre: 'tekken', splits: [`${CASED}|\\p{N}|${SLASHES}`], ignoreMerges: true, addsBos: true },
  { pre: 'gpt-4o', splits: [`${CASED_CONTRACTED}|\\p{N}{1,3}|${SLASHES}`] },
  { pre: 'deepseek-v3', splits: ['\\p{N}{1,3}', '[一-龥぀-ゟ゠-ヿ]+', DEEPSEEK_V3] },
  { pre: 'falcon', splits: ['[\\p{P}\\$\\+<=>\\^~\\|`]+', GPT2, '[0-9][0-9][0-9]'] },
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
