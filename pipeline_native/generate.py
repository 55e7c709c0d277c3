"""Tells stories with an exported model.

    python -m pipeline_native.generate models/stories-arch2_4 --count 10 --temperature 0.7
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

from .evaluate import load
from .models import Model


@torch.no_grad()
def story(model: Model, tokenizer: Tokenizer, prompt: str, temperature: float, generator: torch.Generator) -> str:
    """The prompt and its continuation, up to `<|endoftext|>` or the end of the context; temperature 0 is greedy."""
    ids = tokenizer.encode(prompt).ids
    while len(ids) < model.config["contextLength"]:
        logits = model(torch.tensor([ids]))[0, -1]
        if temperature == 0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
        if token == 0:
            break
        ids.append(token)
    return tokenizer.decode(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt", default="", help="the beginning of every story (empty)")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(a.model)
    generator = torch.Generator().manual_seed(a.seed)
    for number in range(1, a.count + 1):
        print(f"--- {number}\n{story(model, tokenizer, a.prompt, a.temperature, generator)}", flush=True)


if __name__ == "__main__":
    main()
