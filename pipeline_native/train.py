"""Trains one of the architectures on a text file whose documents are separated by `<|endoftext|>`.

    python -m pipeline_native.train --arch arch2_4 --text stories.txt --out models/stories-arch2_4 --steps 2000

Trains a byte-level BPE tokenizer on the text first, holds out the last `--held-out` of the documents, prints a JSON
line of metrics every `--every` steps and writes config.json, model.safetensors (BF16), tokenizer.json and
tokenizer_config.json. Losses are nats a token. The same seed and thread count give the same model.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from .configs import ARCHITECTURES, EXPERT_STYLES, model_config
from .export import export
from .models import Model, Trace

END = "<|endoftext|>"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", help="the model's name in config.json; default: the last part of --out")
    for flag, default, meaning in [
        ("dim", 96, "hidden width"),
        ("layers", 4, "stored layers (blocks in arch5)"),
        ("heads", 6, "query heads"),
        ("kv-heads", 2, "key/value heads"),
        ("head-dim", 16, "width of a head"),
        ("ff", 384, "width of the dense FFN"),
        ("experts", 8, "experts of a layer"),
        ("top-k", 2, "experts of a token"),
        ("expert-dim", 96, "width of an expert"),
        ("vocab", 512, "tokens of the tokenizer"),
        ("context", 256, "positions of a training sequence"),
        ("batch", 8, "sequences of a step"),
        ("steps", 2000, "optimizer steps"),
        ("warmup", 50, "steps of linear warm-up"),
        ("every", 50, "steps between metrics"),
        ("seed", 42, "of initialisation and sampling"),
        ("threads", 1, "of PyTorch"),
    ]:
        parser.add_argument(f"--{flag}", type=int, default=default, help=f"{meaning} ({default})")
    parser.add_argument("--lr", type=float, default=4e-3, help="peak learning rate, cosine decay to 1/30 of it (4e-3)")
    parser.add_argument("--weight-decay", type=float, default=0.1, help="of matrices (0.1)")
    parser.add_argument("--balance", type=float, default=0.01, help="weight of the load-balancing loss (0.01)")
    parser.add_argument("--held-out", type=float, default=0.05, help="share of the documents (0.05)")
    return parser.parse_args()


def train_tokenizer(documents: list[str], vocab: int) -> Tokenizer:
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
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[str]) -> Tensor:
    """All documents in one row, each behind one `<|endoftext|>`, which thus begins and ends a story."""
    ids = [0]
    for encoding in tokenizer.encode_batch(documents):
        ids += encoding.ids + [0]
    return torch.tensor(ids)


def build_config(a: argparse.Namespace) -> dict:
    moe = {"experts": a.experts, "top_k": a.top_k, "expert_dim": a.expert_dim} if a.arch in EXPERT_STYLES else {}
    return model_config(
        a.arch,
        name=a.name or a.out.name,
        dim=a.dim,
        layers=a.layers,
        heads=a.heads,
        kv_heads=a.kv_heads,
        head_dim=a.head_dim,
        ff=a.ff,
        vocab=a.vocab,
        context=a.context,
        tied=True,
        special={"bosTokenId": 0, "eosTokenIds": [0]},
        **moe,
    )


def initial_weights(model: Model, layers: int) -> None:
    """Matrices normal with 1/sqrt(inputs); what writes to the residual is divided by sqrt(2 * layers)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                std = 0.05 if "embed" in name else parameter.shape[1] ** -0.5
                if "o_proj" in name or "down_proj" in name:
                    std /= math.sqrt(2 * layers)
                parameter.normal_(0, std)


def balance_loss(trace: Trace) -> Tensor:
    """experts * sum over experts of (share of the choices * mean probability), mean over layers; 1 when balanced."""
    losses = []
    for logits, indices in zip(trace.router_logits, trace.router_indices):
        count = logits.shape[-1]
        share = F.one_hot(indices, count).flatten(0, -2).double().mean(0).to(logits.dtype)
        losses.append(count * (share * logits.softmax(-1).flatten(0, -2).mean(0)).sum())
    return torch.stack(losses).mean() if losses else torch.zeros(())


def batch_of(ids: Tensor, batch: int, context: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(0, len(ids) - context - 1, (batch,)).tolist()
    rows = torch.stack([ids[s : s + context + 1] for s in starts])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def evaluate(model: Model, ids: Tensor, context: int) -> float:
    """Mean loss over consecutive windows of `context` positions; every token but the first is predicted once."""
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, context):
        row = ids[start : start + context + 1]
        total += F.cross_entropy(model(row[None, :-1])[0], row[1:], reduction="sum").item()
        count += len(row) - 1
    return total / count


def rate(step: int, a: argparse.Namespace) -> float:
    """Share of the peak learning rate."""
    if step < a.warmup:
        return (step + 1) / a.warmup
    done = (step - a.warmup) / max(1, a.steps - a.warmup)
    return 1 / 30 + (1 - 1 / 30) * (1 + math.cos(math.pi * done)) / 2


def optimizer_of(model: Model, a: argparse.Namespace) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": a.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95))


def train(model: Model, ids: Tensor, held_out: Tensor, a: argparse.Namespace) -> None:
    optimizer = optimizer_of(model, a)
    began = time.monotonic()
    for step in range(a.steps):
        for group in optimizer.param_groups:
            group["lr"] = a.lr * rate(step, a)
        inputs, targets = batch_of(ids, a.batch, a.context)
        trace = Trace()
        loss = F.cross_entropy(model(inputs, trace).flatten(0, 1), targets.flatten())
        balance = balance_loss(trace)
        optimizer.zero_grad(set_to_none=True)
        (loss + a.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % a.every == 0 or step == 0:
            metrics = {"step": step + 1, "loss": round(loss.item(), 4), "balance": round(balance.item(), 4)}
            if (step + 1) % (10 * a.every) == 0:
                metrics["heldOut"] = round(evaluate(model, held_out, a.context), 4)
            print(json.dumps({**metrics, "seconds": round(time.monotonic() - began, 1)}), flush=True)


def save(model: Model, tokenizer: Tokenizer, a: argparse.Namespace) -> None:
    export(model, a.out, torch.bfloat16)
    # Prompts begin as every story did in training.
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    tokenizer.save(str(a.out / "tokenizer.json"))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": a.context,
    }
    (a.out / "tokenizer_config.json").write_text(json.dumps(names, indent=2) + "\n")


def main() -> None:
    a = arguments()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    documents = [d.strip() for d in a.text.read_text(encoding="utf-8").split(END) if d.strip()]
    random.Random(a.seed).shuffle(documents)
    keep = len(documents) - max(1, round(len(documents) * a.held_out))
    tokenizer = train_tokenizer(documents[:keep], a.vocab)
    ids, held_out = encode(tokenizer, documents[:keep]), encode(tokenizer, documents[keep:])
    model = Model(build_config(a))
    initial_weights(model, a.layers)
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"parameters": parameters, "tokens": len(ids), "heldOutTokens": len(held_out)}), flush=True)
    train(model, ids, held_out, a)
    save(model, tokenizer, a)
    model.load_state_dict({name: t.to(torch.bfloat16).float() for name, t in model.state_dict().items()})
    heldout_bytes = sum(len(d.encode()) for d in documents[keep:])
    loss = evaluate(model, held_out, a.context)
    bits = loss * (len(held_out) - 1) / math.log(2) / heldout_bytes
    print(json.dumps({"heldOutBF16": round(loss, 4), "bitsPerByte": round(bits, 4)}), flush=True)


if __name__ == "__main__":
    main()
