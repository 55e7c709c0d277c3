"""Text to tokens: documents, the held-out split, the tokenizer, and batches that depend on the step alone."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

END = "<|endoftext|>"
SPLIT_SEED, HELD_OUT_SHARE = 42, 0.05


def documents(path: Path) -> list[str]:
    """The documents of a text file, which `<|endoftext|>` separates."""
    return [d.strip() for d in path.read_text(encoding="utf-8").split(END) if d.strip()]


def split(path: Path) -> tuple[list[str], list[str]]:
    """Training and held-out documents: the same 5 % for every model, whatever its seed."""
    shuffled = documents(path)
    random.Random(SPLIT_SEED).shuffle(shuffled)
    keep = len(shuffled) - max(1, round(len(shuffled) * HELD_OUT_SHARE))
    return shuffled[:keep], shuffled[keep:]


def train_tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    """Byte-level BPE: all 256 bytes are in the vocabulary, so every text encodes. `<|endoftext|>` is token 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path, context: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json; prompts begin with `<|endoftext|>`, as stories do in training."""
    saved = Tokenizer.from_str(tokenizer.to_str())
    saved.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    saved.save(str(directory / "tokenizer.json"))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(names, indent=2) + "\n")


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """All documents in one row of ids, each behind one `<|endoftext|>`, which thus begins and ends a story."""
    ids = [0]
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        ids += encoding.ids + [0]
    return torch.tensor(ids)


@dataclass
class Corpus:
    """Rows of token ids and the share of the training sequences that each gives."""

    rows: list[Tensor]
    shares: list[float]
    seed: int

    def batch(self, step: int, size: int, context: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets [size, context] of a step: windows at random places, the same whenever asked."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        windows = []
        for _ in range(size):
            row = self.rows[int(torch.multinomial(torch.tensor(self.shares), 1, generator=generator))]
            start = int(torch.randint(0, len(row) - context - 1, (1,), generator=generator))
            windows.append(row[start : start + context + 1])
        both = torch.stack(windows)
        return both[:, :-1], both[:, 1:]
