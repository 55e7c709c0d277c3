"""The architectures of chapter 4, each a short loop over layers.

A model is built from the `config.json` that the TypeScript packages read, and its parameters carry the tensor
names of the file format, so that `state_dict()` is the checkpoint. `Model(config)(tokens)` gives logits
[B, T, vocab]; with a `Trace` it also records what the engine is compared against.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .layers import Attention, GatedFFN, RMSNorm, route, run_experts


@dataclass
class Trace:
    """What one forward pass did, in order of effective layers (an iteration of a block counts as a layer)."""

    residuals: list[Tensor] = field(default_factory=list)
    """The residual [B, T, d] after each effective layer: s_ffn in arch1, xfm_reg in arch3."""
    attention_streams: list[Tensor] = field(default_factory=list)
    """arch1: s_attn after each layer (after the merge); arch3: attn_reg."""
    router_logits: list[Tensor] = field(default_factory=list)
    router_indices: list[Tensor] = field(default_factory=list)
    router_weights: list[Tensor] = field(default_factory=list)
    final: Tensor | None = None
    """The vector that the LM head reads: norm(x) of the last residual."""


class Layer(nn.Module):
    """The weights of one layer and its four stages; how they are wired is the architecture's business."""

    def __init__(self, config: dict, layer: dict):
        super().__init__()
        dim, eps = config["hiddenDim"], config["normEps"]
        self.attn_norm = RMSNorm(dim, eps)
        self.attn = Attention(dim, layer["attention"])
        self.ffn_norm = RMSNorm(dim, eps)
        self.moe = layer.get("experts")
        if "ffn" in layer:
            self.ffn = GatedFFN(dim, layer["ffn"]["dim"], layer["ffn"]["activation"])
        if self.moe:
            self.router = nn.Linear(dim, self.moe["count"], bias=False)
            self.experts = nn.ModuleList(
                GatedFFN(dim, self.moe["dim"], self.moe["activation"]) for _ in range(self.moe["count"])
            )

    def attend(self, x: Tensor) -> Tensor:
        """m = Attn(Norm(x))."""
        return self.attn(self.attn_norm(x))

    def feed(self, x: Tensor) -> Tensor:
        """f = FFN(Norm(x))."""
        return self.ffn(self.ffn_norm(x))

    def mix(self, x: Tensor, trace: Trace) -> Tensor:
        """e = sum of s_j * Expert_j(r) with r = Norm(x), Eqs. 4.14 and 4.15."""
        r = self.ffn_norm(x)
        logits = self.router(r)
        indices, weights = route(logits, self.moe)
        trace.router_logits.append(logits)
        trace.router_indices.append(indices)
        trace.router_weights.append(weights)
        return run_experts(self.experts, r, indices, weights)


def sequential(config: dict, layers: nn.ModuleList, x: Tensor, trace: Trace) -> Tensor:
    """Ordinary pre-norm decoder, Eqs. 4.1 to 4.4; here only to be checked against published implementations."""
    for layer in layers:
        mid = x + layer.attend(x)
        x = mid
        if hasattr(layer, "ffn"):
            x = x + layer.feed(mid)
        if layer.moe:
            x = x + layer.mix(mid, trace)
        trace.residuals.append(x)
    return x


def decoupled_streams(config: dict, layers: nn.ModuleList, x: Tensor, trace: Trace) -> Tensor:
    """arch1: attention and FFN each have a stream of their own, averaged every few layers (Eqs. 4.17, 4.18)."""
    s_attn = s_ffn = x
    for number, layer in enumerate(layers, start=1):
        s_attn = s_attn + layer.attend(s_attn)
        s_ffn = s_ffn + layer.feed(s_ffn)
        if number % config["mergeInterval"] == 0:
            s_attn = s_ffn = (s_attn + s_ffn) / 2
        trace.attention_streams.append(s_attn)
        trace.residuals.append(s_ffn)
    return s_ffn


def pipeline_registers(config: dict, layers: nn.ModuleList, x: Tensor, trace: Trace) -> Tensor:
    """arch3: attention reads attn_reg only, the FFN reads the xfm_reg of the layer before (Eqs. 4.19 to 4.21)."""
    attn_reg = xfm_reg = x
    for layer in layers:
        attn_reg = attn_reg + layer.attend(attn_reg)
        xfm_reg = attn_reg + layer.feed(xfm_reg)
        trace.attention_streams.append(attn_reg)
        trace.residuals.append(xfm_reg)
    return xfm_reg


def fixed_point(config: dict, layers: nn.ModuleList, x: Tensor, trace: Trace) -> Tensor:
    """arch5: x <- x_block + a + FFN(Norm(x + a)) with a = Attn(Norm(x)), a few times per block (Eq. 4.22)."""
    for block in layers:
        x_block = x
        for _ in range(config["iterations"]):
            a = block.attend(x)
            x = x_block + a + block.feed(x + a)
            trace.residuals.append(x)
    return x


def parallel_sqrt2(config: dict, layers: nn.ModuleList, x: Tensor, trace: Trace) -> Tensor:
    """Combine style 0: FFN and experts read the same norm(x_mid); their sum is scaled by 1/sqrt(2)."""
    for layer in layers:
        mid = x + layer.attend(x)
        x = mid + (layer.feed(mid) + layer.mix(mid, trace)) / math.sqrt(2)
        trace.residuals.append(x)
    return x


def delayed(config: dict, layers: nn.ModuleList, x: Tensor, trace: Trace, pre_attention: bool) -> Tensor:
    """Dense delay (Eqs. 4.9 to 4.12) and expert delay (Eq. 4.16).

    The FFN of layer l reads x^out of layer l - dd and contributes nothing while there is none. What the experts of
    layer l computed is added to x^out of layer l + de, or of the last layer where that is beyond the end.
    """
    dd, de, last = config["denseDelay"], config["expertDelay"], len(layers) - 1
    outs: list[Tensor] = []
    pending: list[list[Tensor]] = [[] for _ in layers]
    for number, layer in enumerate(layers):
        mid = x + layer.attend(x)
        read = x if pre_attention else mid
        pending[min(number + de, last)].append(layer.mix(read, trace))
        out = mid
        if dd == 0:
            out = out + layer.feed(read)
        elif number >= dd:
            out = out + layer.feed(outs[number - dd])
        for e in pending[number]:
            out = out + e
        outs.append(out)
        trace.residuals.append(out)
        x = out
    return x


def delayed_sum(config: dict, layers: nn.ModuleList, x: Tensor, trace: Trace) -> Tensor:
    """arch2_4 and arch2_4_sync: the router reads the post-attention norm(x_mid)."""
    return delayed(config, layers, x, trace, pre_attention=False)


def async_experts(config: dict, layers: nn.ModuleList, x: Tensor, trace: Trace) -> Tensor:
    """arch4: FFN and router both read the pre-attention norm(x_in)."""
    return delayed(config, layers, x, trace, pre_attention=True)


STYLES = {
    "sequential": sequential,
    "decoupledStreams": decoupled_streams,
    "pipelineRegisters": pipeline_registers,
    "fixedPoint": fixed_point,
    "parallelSqrt2": parallel_sqrt2,
    "delayedSum": delayed_sum,
    "asyncExperts": async_experts,
}


class Model(nn.Module):
    """Embedding, layers wired by `combineStyle`, final norm, LM head (the embedding itself where tied)."""

    def __init__(self, config: dict):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config["vocabSize"], config["hiddenDim"])
        self.layers = nn.ModuleList(Layer(config, layer) for layer in config["layers"])
        self.norm = RMSNorm(config["hiddenDim"], config["normEps"])
        if not config["tiedEmbeddings"]:
            self.lm_head = nn.Linear(config["hiddenDim"], config["vocabSize"], bias=False)

    def forward(self, tokens: Tensor, trace: Trace | None = None) -> Tensor:
        trace = trace if trace is not None else Trace()
        x = STYLES[self.config["combineStyle"]](self.config, self.layers, self.embed_tokens(tokens), trace)
        trace.final = self.norm(x)
        head = self.embed_tokens.weight if self.config["tiedEmbeddings"] else self.lm_head.weight
        return trace.final @ head.T


def initialise(model: Model, seed: int, std: float, norm_spread: float = 0.0) -> Model:
    """Matrices normal with `std`; norm weights 1 + normal * `norm_spread`. In place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * std if parameter.dim() == 2 else 1 + noise * norm_spread)
    return model


def scaled_initialise(model: Model) -> Model:
    """For training: matrices normal with 1/sqrt(inputs); what writes to the residual over sqrt(2 * layers). In place."""
    passes = len(model.layers) * model.config.get("iterations", 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                std = 0.05 if "embed" in name else parameter.shape[1] ** -0.5
                parameter.normal_(0, std / math.sqrt(2 * passes) if "o_proj" in name or "down_proj" in name else std)
    return model
