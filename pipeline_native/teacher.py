"""Samples stories from a small trained Llama checkpoint, as further training text.

    python -m pipeline_native.teacher shared/data/stories260K --out sampled.txt --minutes 10

Writes finished stories only, each followed by `<|endoftext|>`; a story that fills the teacher's context is dropped.
The file is appended to after every batch, so a run may be stopped and started again (with another `--seed`).
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from .layers import rope_angles, rotate

BOS, EOS, END = 1, 2, "<|endoftext|>"


class Teacher:
    """A Llama decoder that advances a batch of rows by one token at a time; keys and values are cached."""

    def __init__(self, directory: Path):
        self.config = json.loads((directory / "config.json").read_text())
        self.weights = load_file(directory / "model.safetensors")
        self.context = self.config["max_position_embeddings"]
        self.head_dim = self.config["head_dim"]
        self.angles = rope_angles(self.context, self.head_dim, self.config["rope_theta"])
        self.layers = [self.layer(number) for number in range(self.config["num_hidden_layers"])]

    def layer(self, number: int) -> dict[str, Tensor]:
        prefix = f"model.layers.{number}."
        return {name[len(prefix) :]: w for name, w in self.weights.items() if name.startswith(prefix)}

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config["rms_norm_eps"])

    def new_cache(self, rows: int) -> Tensor:
        """Keys and values [layer, 2, row, kv head, position, head_dim]."""
        return torch.zeros(len(self.layers), 2, rows, self.config["num_key_value_heads"], self.context, self.head_dim)

    def step(self, tokens: Tensor, position: int, cache: Tensor) -> Tensor:
        """Logits [row, vocab] after tokens [row], all at the same position."""
        x = self.weights["model.embed_tokens.weight"][tokens]
        for number, w in enumerate(self.layers):
            x = x + self.attend(self.norm(x, w["input_layernorm.weight"]), w, position, cache[number])
            r = self.norm(x, w["post_attention_layernorm.weight"])
            hidden = F.silu(r @ w["mlp.gate_proj.weight"].T) * (r @ w["mlp.up_proj.weight"].T)
            x = x + hidden @ w["mlp.down_proj.weight"].T
        return self.norm(x, self.weights["model.norm.weight"]) @ self.weights["model.embed_tokens.weight"].T

    def attend(self, x: Tensor, w: dict[str, Tensor], position: int, cache: Tensor) -> Tensor:
        rows, groups = len(x), self.config["num_key_value_heads"]

        def heads(name: str) -> Tensor:
            return (x @ w[f"self_attn.{name}_proj.weight"].T).view(rows, groups, -1, self.head_dim)

        angle = self.angles[position]
        cache[0][:, :, position] = rotate(heads("k"), angle)[:, :, 0]
        cache[1][:, :, position] = heads("v")[:, :, 0]
        keys, values = cache[0][:, :, : position + 1], cache[1][:, :, : position + 1]
        scores = rotate(heads("q"), angle) @ keys.transpose(-1, -2) * self.head_dim**-0.5
        return (scores.softmax(-1) @ values).reshape(rows, -1) @ w["self_attn.o_proj.weight"].T


def draw(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row; Gumbel's way of sampling a softmax. Temperature 0 is the arg max."""
    noise = -torch.empty_like(logits).exponential_(generator=generator).log()
    return (logits + noise * temperatures[:, None]).argmax(-1)


@torch.no_grad()
def stories(teacher: Teacher, temperatures: Tensor, generator: torch.Generator, compact: int = 32) -> list[list[int]]:
    """Token ids of the stories that ended within the context; finished rows leave the batch every `compact` steps."""
    rows, done = len(temperatures), []
    cache, tokens = teacher.new_cache(rows), torch.full((rows, 1), BOS)
    alive = torch.ones(rows, dtype=torch.bool)
    for position in range(teacher.context - 1):
        chosen = draw(teacher.step(tokens[:, -1], position, cache), temperatures, generator)
        tokens = torch.cat([tokens, chosen[:, None]], 1)
        ended = alive & ((chosen == BOS) | (chosen == EOS))
        done += [row[1:-1].tolist() for row in tokens[ended]]
        alive &= ~ended
        if not alive.any():
            break
        if position % compact == compact - 1:
            cache, tokens, temperatures = cache[:, :, alive], tokens[alive], temperatures[alive]
            alive = alive[alive]
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10, help="stop after the batch that passes this (10)")
    parser.add_argument("--rows", type=int, default=256, help="stories sampled side by side (256)")
    parser.add_argument("--low", type=float, default=0.7, help="lowest temperature of a row (0.7)")
    parser.add_argument("--high", type=float, default=0.95, help="highest temperature of a row (0.95)")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(1)
    teacher, tokenizer = Teacher(a.teacher), Tokenizer.from_file(str(a.teacher / "tokenizer.json"))
    generator = torch.Generator().manual_seed(a.seed)
    began, written = time.monotonic(), 0
    while time.monotonic() - began < a.minutes * 60:
        made = stories(teacher, torch.linspace(a.low, a.high, a.rows), generator)
        text = "".join(f"{story.strip()}\n{END}\n" for story in tokenizer.decode_batch(made))
        with a.out.open("a", encoding="utf-8") as file:
            file.write(text)
        written += len(text)
        metrics = {"stories": len(made), "characters": written, "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps(metrics), flush=True)


if __name__ == "__main__":
    main()
