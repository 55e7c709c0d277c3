"""Trains one of the architectures on a text file whose documents are separated by `<|endoftext|>`.

    python -m pipeline_native.train --arch arch2_4 --text stories.txt --out models/my-model --steps 2000

Writes into --out: tokenizer.json (trained on the text, or copied from --tokenizer), metrics.jsonl (also printed;
losses in nats a token), checkpoint.pt every --save-every steps, and at the end config.json and model.safetensors
(BF16). --resume goes on from checkpoint.pt. Matrix products run in BF16, weights and optimiser are float32. The same
arguments give the same batches and initial weights.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from .configs import ARCHITECTURES, scaled_config
from .data import Corpus, documents, encode, save_tokenizer, split, train_tokenizer
from .evaluate import evaluate, figures
from .export import export
from .models import Model, Trace, scaled_initialise
from .schedule import Schedule


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), required=True)
    parser.add_argument("--text", type=Path, required=True, help="5 %% of its documents are held out")
    parser.add_argument("--extra", type=Path, help="further text, for training only")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", help="the model's name in config.json; default: the last part of --out")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to use instead of training one")
    parser.add_argument("--resume", action="store_true", help="go on from checkpoint.pt in --out, if there is one")
    parser.add_argument("--schedule", choices=["cosine", "constant"], default="cosine", help="see schedule.py")
    parser.add_argument("--finish", type=Path, help="constant: a file with a number of steps, which starts the decay")
    for flag, default, meaning in [
        ("dim", 96, "hidden width; all other widths follow, as in the report"),
        ("heads", 4, "query heads, and key/value heads"),
        ("vocab", 2048, "tokens of the tokenizer"),
        ("context", 256, "positions of a training sequence"),
        ("batch", 8, "sequences of a step"),
        ("steps", 2000, "optimizer steps"),
        ("warmup", 100, "steps of linear warm-up"),
        ("every", 50, "steps between metrics"),
        ("save-every", 500, "steps between checkpoints, each with a held-out loss"),
        ("seed", 42, "of initialisation and batches"),
        ("threads", 1, "of PyTorch"),
    ]:
        parser.add_argument(f"--{flag}", type=int, default=default, help=f"{meaning} ({default})")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate (3e-3)")
    parser.add_argument("--weight-decay", type=float, default=0.1, help="of matrices (0.1)")
    parser.add_argument("--balance", type=float, default=0.01, help="weight of the load-balancing loss (0.01)")
    parser.add_argument("--extra-share", type=float, default=0.6, help="share of sequences from --extra (0.6)")
    return parser.parse_args(argv)


def balance_loss(trace: Trace) -> Tensor:
    """experts * sum over experts of (share of the choices * mean probability), mean over layers; 1 when balanced."""
    losses = []
    for logits, indices in zip(trace.router_logits, trace.router_indices):
        count = logits.shape[-1]
        share = indices.flatten().bincount(minlength=count) / indices.numel()
        losses.append(count * (share * logits.float().softmax(-1).flatten(0, -2).mean(0)).sum())
    return torch.stack(losses).mean() if losses else torch.zeros(())


def optimizer_of(model: Model, a: argparse.Namespace) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": a.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), fused=True)


class Run:
    """Everything that a training run keeps between steps, and can save and load."""

    def __init__(self, a: argparse.Namespace, model: Model, corpus: Corpus, held_out: Tensor):
        self.a, self.model, self.corpus, self.held_out = a, model, corpus, held_out
        self.optimizer = optimizer_of(model, a)
        self.schedule = Schedule(a.schedule, a.warmup, a.steps, finish=a.finish)
        self.step, self.seconds = 0, 0.0

    def advance(self) -> dict:
        """One optimizer step; its metrics."""
        self.schedule.look(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.a.lr * self.schedule.share(self.step)
        inputs, targets = self.corpus.batch(self.step, self.a.batch, self.a.context)
        trace = Trace()
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(inputs, trace)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        balance = balance_loss(trace)
        self.optimizer.zero_grad(set_to_none=True)
        (loss + self.a.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return {"loss": round(loss.item(), 4), "balance": round(balance.item(), 4)}

    def report(self, metrics: dict) -> None:
        line = json.dumps({"step": self.step, **metrics, "cpuSeconds": round(self.seconds, 1)})
        print(line, flush=True)
        with (self.a.out / "metrics.jsonl").open("a") as file:
            file.write(line + "\n")

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "schedule": (self.schedule.decay_from, self.schedule.steps),
        }
        torch.save(state, self.a.out / "checkpoint.new")
        (self.a.out / "checkpoint.new").replace(self.a.out / "checkpoint.pt")

    def load(self) -> None:
        state = torch.load(self.a.out / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        decay_from, steps = state["schedule"]
        if decay_from is not None:
            self.schedule.decay_from, self.schedule.steps = decay_from, steps

    def train(self) -> None:
        # CPU time: a run may be paused, and share its processor.
        before = time.process_time()
        while self.step < self.schedule.steps:
            metrics = self.advance()
            now = time.process_time()
            self.seconds, before = self.seconds + now - before, now
            if self.step % self.a.save_every == 0:
                metrics["heldOut"] = round(evaluate(self.model, self.held_out, self.a.context), 4)
                self.save()
            if self.step % self.a.every == 0 or self.step == 1:
                self.report(metrics)


def read_data(a: argparse.Namespace) -> tuple[Tokenizer, Corpus, list[str]]:
    """The tokenizer, the training corpus and the held-out documents; saves the tokenizer into --out."""
    training, held_out = split(a.text)
    own = a.out / "tokenizer.json"
    source = own if a.resume and own.exists() else a.tokenizer
    tokenizer = Tokenizer.from_file(str(source)) if source else train_tokenizer(training, a.vocab)
    save_tokenizer(tokenizer, a.out, a.context)
    rows, shares = [encode(tokenizer, training)], [1.0]
    if a.extra:
        rows.append(encode(tokenizer, documents(a.extra)))
        shares = [1 - a.extra_share, a.extra_share]
    return tokenizer, Corpus(rows, shares, a.seed), held_out


def finish(run: Run, tokenizer: Tokenizer, held_out: list[str]) -> dict:
    """Exports the model and returns the held-out figures of its BF16 weights."""
    export(run.model, run.a.out, torch.bfloat16)
    run.model.load_state_dict({name: t.to(torch.bfloat16).float() for name, t in run.model.state_dict().items()})
    return figures(run.model, tokenizer, held_out)


def main(argv: list[str] | None = None) -> dict:
    a = arguments(argv)
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    a.out.mkdir(parents=True, exist_ok=True)
    tokenizer, corpus, held_out = read_data(a)
    config = scaled_config(
        a.arch,
        name=a.name or a.out.name,
        dim=a.dim,
        heads=a.heads,
        vocab=tokenizer.get_vocab_size(),
        context=a.context,
    )
    model = scaled_initialise(Model(config))
    run = Run(a, model, corpus, encode(tokenizer, held_out))
    if a.resume and (a.out / "checkpoint.pt").exists():
        run.load()
    sizes = {"parameters": sum(p.numel() for p in model.parameters()), "tokens": [len(row) for row in corpus.rows]}
    run.report(sizes)
    run.train()
    result = finish(run, tokenizer, held_out)
    run.report({"heldOutBF16": result})
    return {**sizes, **result}


if __name__ == "__main__":
    main()
