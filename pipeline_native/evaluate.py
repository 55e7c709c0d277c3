"""The loss of a model on held-out text.

    python -m pipeline_native.evaluate models/stories-arch2_4 tinystories.txt
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from .data import encode, split
from .models import Model


@torch.no_grad()
def evaluate(model: Model, ids: Tensor, context: int) -> float:
    """Mean loss in nats over consecutive windows of `context` positions; every token but the first is predicted once."""
    total = 0.0
    for start in range(0, len(ids) - 1, context):
        row = ids[start : start + context + 1]
        total += F.cross_entropy(model(row[None, :-1])[0], row[1:], reduction="sum").item()
    return total / (len(ids) - 1)


def load(directory: Path) -> tuple[Model, Tokenizer]:
    """The exported model in float32, and its tokenizer."""
    model = Model(json.loads((directory / "config.json").read_text()))
    model.load_state_dict({name: t.float() for name, t in load_file(directory / "model.safetensors").items()})
    return model, Tokenizer.from_file(str(directory / "tokenizer.json"))


def figures(model: Model, tokenizer: Tokenizer, texts: list[str]) -> dict:
    """Nats a token, perplexity, and bits a byte, the one that models of different tokenizers can be compared by."""
    ids = encode(tokenizer, texts)
    loss = evaluate(model, ids, model.config["contextLength"])
    size = sum(len(text.encode()) for text in texts)
    return {
        "tokens": len(ids) - 1,
        "nats": round(loss, 4),
        "perplexity": round(math.exp(loss), 3),
        "bitsPerByte": round(loss * (len(ids) - 1) / math.log(2) / size, 4),
    }


def main() -> None:
    torch.set_num_threads(1)
    model, tokenizer = load(Path(sys.argv[1]))
    print(json.dumps(figures(model, tokenizer, split(Path(sys.argv[2]))[1])))


if __name__ == "__main__":
    main()
