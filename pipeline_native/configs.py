"""Model configurations in the JSON schema of `packages/format/src/model/config.ts`, every key written out."""

DENSE_STYLES = {
    "arch1": {"combineStyle": "decoupledStreams", "denseDelay": 0, "expertDelay": 0, "mergeInterval": 3},
    "arch3": {"combineStyle": "pipelineRegisters", "denseDelay": 0, "expertDelay": 0},
    "arch5": {"combineStyle": "fixedPoint", "denseDelay": 0, "expertDelay": 0, "iterations": 3},
}
EXPERT_STYLES = {
    "arch2_4": {"combineStyle": "delayedSum", "denseDelay": 1, "expertDelay": 2},
    "arch2_4_sync": {"combineStyle": "delayedSum", "denseDelay": 1, "expertDelay": 0},
    "arch4": {"combineStyle": "asyncExperts", "denseDelay": 0, "expertDelay": 2},
    "parallel_sqrt2": {"combineStyle": "parallelSqrt2", "denseDelay": 0, "expertDelay": 0},
}
ARCHITECTURES = {**DENSE_STYLES, **EXPERT_STYLES}


def model_config(
    arch: str,
    *,
    name: str,
    dim: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ff: int,
    vocab: int,
    context: int,
    experts: int = 0,
    top_k: int = 0,
    expert_dim: int = 0,
    tied: bool = False,
    special: dict | None = None,
) -> dict:
    """The config of one of `ARCHITECTURES`; `layers` counts stored layers, which are blocks in arch5."""
    layer = {
        "attention": {
            "heads": heads,
            "kvHeads": kv_heads,
            "headDim": head_dim,
            "rope": {"theta": 10000, "rotaryDim": head_dim},
            "scale": head_dim**-0.5,
            "qkNorm": "none",
            "vNorm": False,
            "biasQkv": False,
            "biasOut": False,
        },
        "ffn": {"dim": ff, "activation": "gelu", "bias": False},
    }
    if arch in EXPERT_STYLES:
        layer["experts"] = {
            "count": experts,
            "topK": top_k,
            "dim": expert_dim,
            "activation": "gelu",
            "normalizeTopK": True,
        }
    return {
        "model_type": "cflow",
        "name": name,
        "family": "cflow",
        "hiddenDim": dim,
        "vocabSize": vocab,
        "contextLength": context,
        "normEps": 1e-6,
        "tiedEmbeddings": tied,
        "scaleEmbeddings": False,
        **ARCHITECTURES[arch],
        **(special or {"eosTokenIds": []}),
        "layers": [layer] * layers,
    }


def scaled_config(arch: str, *, name: str, dim: int, heads: int, vocab: int, context: int) -> dict:
    """The config at width `dim` with the report's ratios (§4.3, §5.2.1); embeddings are tied and token 0 ends a text.

    FFN 4 d, six layers, eight experts of width d, of which a token uses two; arch5 has two blocks and is 1.25 times
    as wide.
    """
    shared = arch == "arch5"
    dim = dim * 5 // 4 if shared else dim
    moe = {"experts": 8, "top_k": 2, "expert_dim": dim} if arch in EXPERT_STYLES else {}
    return model_config(
        arch,
        name=name,
        dim=dim,
        layers=2 if shared else 6,
        heads=heads,
        kv_heads=heads,
        head_dim=dim // heads,
        ff=4 * dim,
        vocab=vocab,
        context=context,
        tied=True,
        special={"bosTokenId": 0, "eosTokenIds": [0]},
        **moe,
    )
