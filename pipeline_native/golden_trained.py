"""Trains one tiny checkpoint of each architecture and traces it, beside the random ones of golden.py.

    python -m pipeline_native.golden_trained tinystories.txt packages/runtime-native/test/golden

Trained weights differ from random ones in what matters here: outliers, confident routers, peaked logits. To be small
enough to commit, the models predict characters, and the vocabulary is cut to the most frequent ones. The trace is
computed in float64 from the stored BF16 weights; its text is not from the training data. Its part `q4` is the same
for the weights in Q4_0: at this width Q4_0 changes every norm, so an engine is compared with it, not with BF16.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from .configs import EXPERT_STYLES, model_config
from .data import Corpus, split
from .export import export
from .models import Model, Trace, scaled_initialise
from .quantize import q4_state
from .trace import logits_part, margins, record, top_part, write_trace
from .train import balance_loss

VOCAB, SEED, STEPS, BATCH, CONTEXT = 64, 5, 400, 8, 64
ARCHITECTURES = ("arch1", "arch2_4", "arch2_4_sync", "arch3", "arch4", "arch5")
TEXT = "Once a small owl could not sleep."
TOP = [0, 9, 20, 32]


def alphabet(texts: list[str]) -> str:
    """The most frequent characters, most frequent first; the last id, `VOCAB` - 1, stands for all others."""
    joined = "".join(texts)
    return "".join(sorted(set(joined), key=lambda c: (-joined.count(c), c))[: VOCAB - 1])


def encode(characters: str, text: str) -> Tensor:
    ids = {character: number for number, character in enumerate(characters)}
    return torch.tensor([ids.get(character, VOCAB - 1) for character in text])


def config_of(arch: str) -> dict:
    """Widths for about 200 kB; with experts, which are most of the weights, both kinds of FFN are narrower."""
    dim, layers = (64, 2) if arch == "arch5" else (32, 6)
    moe = {"experts": 8, "top_k": 2, "expert_dim": 12} if arch in EXPERT_STYLES else {}
    return model_config(
        arch,
        name=f"trained-{arch}",
        dim=dim,
        layers=layers,
        heads=4,
        kv_heads=4,
        head_dim=dim // 4,
        ff=2 * dim if moe else 4 * dim,
        vocab=VOCAB,
        context=CONTEXT,
        tied=True,
        **moe,
    )


def train(model: Model, corpus: Corpus) -> float:
    """AdamW in float32 at a rate that falls linearly; the mean loss of the last 50 steps, nats a character."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 4e-3 * min((step + 1) / 50, (STEPS - step) / STEPS)
        inputs, targets = corpus.batch(step, BATCH, CONTEXT)
        trace = Trace()
        loss = F.cross_entropy(model(inputs, trace).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        (loss + 0.01 * balance_loss(trace)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-50:]) / 50


def checkpoint(arch: str, corpus: Corpus, directory: Path) -> None:
    """Trains and exports; a checkpoint that is already there is kept."""
    if (directory / "model.safetensors").exists():
        return
    torch.manual_seed(SEED)
    model = scaled_initialise(Model(config_of(arch)))
    print(f"{arch}: {train(model, corpus):.3f} nats a character")
    export(model, directory, torch.bfloat16)


def golden(arch: str, tokens: Tensor, directory: Path) -> None:
    model, state = Model(config_of(arch)).double(), load_file(directory / "model.safetensors")
    model.load_state_dict(state)
    result, logits, trace = record(model, tokens)
    print(margins(arch, logits, trace), flush=True)
    model.load_state_dict(q4_state(state))
    quantised, q4_logits, q4_trace = record(model, tokens)
    print(margins(arch + " in Q4_0", q4_logits, q4_trace), flush=True)
    parts = {**result, **logits_part(logits), **top_part(logits, TOP)}
    write_trace(directory, {**parts, "q4": {**quantised, **top_part(q4_logits, TOP)}})


def main() -> None:
    torch.set_num_threads(1)
    training, _ = split(Path(sys.argv[1]))
    characters = alphabet(training)
    corpus = Corpus([encode(characters, "\n".join(training))], [1.0], SEED)
    for arch in ARCHITECTURES:
        directory = Path(sys.argv[2]) / f"trained_{arch}"
        checkpoint(arch, corpus, directory)
        golden(arch, encode(characters, TEXT)[None], directory)


if __name__ == "__main__":
    main()
