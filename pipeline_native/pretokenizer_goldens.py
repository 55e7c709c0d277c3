"""How the pre-tokenizers of GGUF (tokenizer.ggml.pre) cut texts: golden data for packages/convert.

    python -m pipeline_native.pretokenizer_goldens > packages/convert/test/golden/pre-tokenizers.json

The regular expressions are those of the models' own tokenizer.json, or of llama.cpp (llama-vocab.cpp) where no model has
one; the tokenizers library applies them. Pieces are byte-level: a character for each byte of UTF-8.
"""

import json
import sys

from tokenizers import Regex, pre_tokenizers

ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + ENGLISH + "?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + ENGLISH + "?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# name -> regular expressions, each of which cuts what those before it left
PRE = {
    "llama-bpe": [LLAMA3],
    "dbrx": [LLAMA3],
    "qwen2": [QWEN2],
    "gpt-2": [GPT2],
    "olmo": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "tekken": [TEKKEN],
    "gpt-4o": [GPT4O],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
}
SAME = {
    "llama-bpe": ["llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
    "dbrx": ["smaug-bpe", "chatglm-bpe", "glm4"],
    "qwen2": ["deepseek-r1-qwen", "stablelm2", "megrez"],
    "gpt-2": ["mpt", "phi-2", "jais", "roberta-bpe", "gigachat"],
    "smollm": ["starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
    "gpt-4o": ["llama4"],
}
TEXTS = [
    "Hello, world! It's 12345 o'clock; WE'LL see",
    "  two  spaces\tand\n\n  lines\r\n \n",
    "camelCase HTTPServer McDonald ABCdef",
    "https://a.b/c//d?x=1&y=$2`z` <= |~^",
    "naïve Ça e\u0301t\u0300 Straße ΣΑΣ ǅ",
    "漢字とカタカナ123 한국어 ไทย हिन्दी",
    "٣٤٥ ½ Ⅷ x² 1,000.5 0x1F",
    "👩‍👩‍👧 ok 🇩🇪!?\n",
    "don't DON'T don’t 're'Ve'x",
    "a1b22c333d4444 /path/to\n//\n/",
    "\u00a0nbsp\u3000ideographic \u200bzero",
    " ",
]


def pieces(expressions: list[str], text: str) -> list[str]:
    splits = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in expressions]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [piece for piece, _ in pre_tokenizers.Sequence([*splits, byte_level]).pre_tokenize_str(text)]


if __name__ == "__main__":
    cuts = {name: [pieces(expressions, text) for text in TEXTS] for name, expressions in PRE.items()}
    json.dump({"texts": TEXTS, "same": SAME, "cuts": cuts}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()
