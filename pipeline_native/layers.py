"""The building blocks of the report's models: RMSNorm, rotary attention, gated FFN, routed experts.

Shapes: B batch, T positions, d hidden, H query heads, G key/value heads, D head dimension, f FFN width,
E experts, k chosen experts. Every module takes one part of a model's config.json (`layers[i].attention`, ...).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS = {
    "gelu": lambda x: F.gelu(x, approximate="none"),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rope_angles(positions: int, rotary_dim: int, theta: float) -> Tensor:
    """Angles [T, rotary_dim / 2] in float64: position * theta^(-2i / rotary_dim)."""
    frequency = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    return torch.arange(positions, dtype=torch.float64)[:, None] * frequency


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Split-half rotation of x [..., T, D]: dimension i turns with i + rotary_dim / 2; the rest passes."""
    half = angles.shape[-1]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class Attention(nn.Module):
    """Causal attention with grouped key/value heads: query head h reads key/value head h // (H / G)."""

    def __init__(self, dim: int, config: dict):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config["heads"], config["kvHeads"], config["headDim"]
        self.scale, self.rope = config["scale"], config["rope"]
        self.q_proj = nn.Linear(dim, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(batch, length, heads, self.head_dim).transpose(1, 2)

        angles = rope_angles(length, self.rope["rotaryDim"], self.rope["theta"])
        q = rotate(split(self.q_proj(x), self.heads), angles)
        k = rotate(split(self.k_proj(x), self.kv_heads), angles)
        v = split(self.v_proj(x), self.kv_heads)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.transpose(-1, -2) * self.scale
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        out = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class GatedFFN(nn.Module):
    """down(act(gate x) * up x); also one expert."""

    def __init__(self, dim: int, width: int, activation: str):
        super().__init__()
        self.act = ACTIVATIONS[activation]
        self.gate_proj = nn.Linear(dim, width, bias=False)
        self.up_proj = nn.Linear(dim, width, bias=False)
        self.down_proj = nn.Linear(width, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


def route(logits: Tensor, config: dict) -> tuple[Tensor, Tensor]:
    """Indices and weights [..., k] of the chosen experts, largest first; see `normalizeTopK`."""
    values, indices = logits.topk(config["topK"], -1)
    if config["normalizeTopK"]:
        return indices, values.softmax(-1)
    return indices, logits.softmax(-1).gather(-1, indices)


def run_experts(experts: nn.ModuleList, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Sum over the chosen experts of weight * expert(x), Eq. 4.15; x [B, T, d], indices and weights [B, T, k].

    The B T k choices are sorted by expert, so that each expert runs once, over all positions that chose it.
    """
    flat, top_k = x.flatten(0, 1), indices.shape[-1]
    order = indices.flatten().argsort(stable=True)
    counts = indices.flatten().bincount(minlength=len(experts)).tolist()
    token = order // top_k
    parts = [expert(part) for expert, part in zip(experts, flat[token].split(counts))]
    out = torch.cat(parts).to(x.dtype) * weights.flatten()[order, None].to(x.dtype)
    return torch.zeros_like(flat).index_add(0, token, out).view_as(x)
