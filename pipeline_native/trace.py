"""Records what a model did with a row of tokens, as `trace.json`: what the engine is compared against."""

import json
from pathlib import Path

import torch
from torch import Tensor

from .models import Model, Trace

ABOUT = "Norms are L2, [position][effective layer]; routing is [position][layer][rank], largest weight first."


def rounded(value):
    """Floats to 8 significant digits; lists and dictionaries included."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


def norms(layers: list[Tensor]) -> list[list[float]]:
    """L2 norms as [position][effective layer] of tensors [1, T, d]."""
    return torch.stack([x[0].norm(dim=-1) for x in layers], 1).tolist()


def logits_part(logits: Tensor) -> dict:
    """Full logits [T, vocab] of four positions, the arg max of every position."""
    positions = [0, 1, 2, len(logits) - 1]
    return {"logits": {str(p): logits[p].tolist() for p in positions}, "argmax": logits.argmax(-1).tolist()}


def top_part(logits: Tensor, positions: list[int], count: int = 32) -> dict:
    """The largest logits [T, vocab] of some positions, largest first: position to ids and values."""
    top = {p: logits[p].topk(count) for p in positions}
    return {"top32": {str(p): {"ids": t.indices.tolist(), "logits": t.values.tolist()} for p, t in top.items()}}


@torch.no_grad()
def record(model: Model, tokens: Tensor) -> tuple[dict, Tensor, Trace]:
    """The trace of tokens [1, T] without its logits; the logits [T, vocab]; the raw trace."""
    trace = Trace()
    logits = model(tokens, trace)[0]
    result = {"about": ABOUT, "tokens": tokens[0].tolist(), "residualNorms": norms(trace.residuals)}
    if trace.attention_streams:
        result["attentionStreamNorms"] = norms(trace.attention_streams)
    if trace.router_indices:
        result["routerIndices"] = torch.cat(trace.router_indices).transpose(0, 1).tolist()
        result["routerWeights"] = torch.cat(trace.router_weights).transpose(0, 1).tolist()
    result["finalNorms"] = trace.final[0].norm(dim=-1).tolist()
    return result, logits, trace


def write_trace(directory: Path, trace: dict) -> None:
    """One line for each key: small, and still readable in a diff."""
    lines = [f"{json.dumps(key)}: {json.dumps(rounded(value))}" for key, value in trace.items()]
    (directory / "trace.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def margins(name: str, logits: Tensor, trace: Trace) -> str:
    """How far decisions are from flipping: a golden whose choices hang on rounding would be a bad test."""
    top = logits.topk(2, -1).values
    line = f"{name}: logits std {logits.std():.3g}, argmax margin {(top[:, 0] - top[:, 1]).min():.2g}"
    if trace.router_logits:
        ranked = torch.cat(trace.router_logits).sort(-1, descending=True).values
        line += f", router margin {(ranked[..., :2] - ranked[..., 1:3]).min():.2g}"
    return line
