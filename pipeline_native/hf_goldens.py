"""Makes the tiny random checkpoints of every Hugging Face family, saved by transformers, with their logits.

    python -m pipeline_native.hf_goldens packages/runtime-native/test/golden/hf

Weights are random and stored as bfloat16; `expected.json` holds the tokens and the logits that transformers computes
in float32 from what it reads back, token by token through its cache. Contexts are longer than windows and original
contexts, so both act.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

TOKENS, VOCAB = 32, 128
# directory -> tokens, where those are not TOKENS
MORE_TOKENS = {"gemma4_padded": 40, "gemma4_overridden": 40}
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


def rope(kind: str, theta: float = 10_000.0, **rest) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **rest}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
GEMMA = {
    **BASE,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 5.0,
}
GEMMA4 = {**GEMMA, "global_head_dim": 32, "hidden_size_per_layer_input": 0}
GEMMA4_MOE = {
    **GEMMA4,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
GEMMA4_PLE = {
    **GEMMA4,
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCAB,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "intermediate_size": 48,
}
# Every sixth layer is full: saved as keys "05" and "11" of per_layer_config.
GEMMA4_PADDED = {
    **GEMMA4,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 12,
    "layer_types": None,
}
# What differs from the whole model in sliding layers, too.
GEMMA4_OVERRIDDEN = {
    **GEMMA4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 3,
    "per_layer_config": {
        0: {"head_dim": 8, "num_key_value_heads": 2},
        1: {"head_dim": 8, "num_key_value_heads": 2},
        2: {"head_dim": 24},
    },
}

VISION = {"hidden_size": 16, "intermediate_size": 16, "patch_size": 8}
GEMMA3_VISION = {**VISION, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32}
QWEN3_VISION = {
    **VISION,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}

# directory -> (configuration class, fields, arguments of save_pretrained)
GOLDENS: dict[str, tuple[str, dict, dict]] = {
    "llama3": ("LlamaConfig", {**BASE, **rope("llama3", **LLAMA3), "attention_bias": True, "mlp_bias": True}, {}),
    "llama_linear": ("LlamaConfig", {**BASE, **rope("linear", factor=4.0), "tie_word_embeddings": True}, {}),
    "llama_yarn": ("LlamaConfig", {**BASE, **rope("yarn", **YARN)}, {}),
    "llama_dynamic": ("LlamaConfig", {**BASE, **rope("dynamic", factor=4.0), "max_position_embeddings": 8}, {}),
    "mistral": ("MistralConfig", {**BASE, "sliding_window": 8}, {}),
    "mixtral": ("MixtralConfig", {**BASE, "num_local_experts": 4, "intermediate_size": 48, "sliding_window": 8}, {}),
    "mixtral_fused": (
        "MixtralConfig",
        {**BASE, "num_local_experts": 4, "intermediate_size": 48, "sliding_window": None},
        {"save_original_format": False},
    ),
    "qwen2": (
        "Qwen2Config",
        {**BASE, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, **rope("yarn", **YARN)},
        {},
    ),
    "qwen3": ("Qwen3Config", {**BASE, **rope("default", 1e6)}, {}),
    "qwen3_moe": ("Qwen3MoeConfig", {**BASE, **EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1]}, {}),
    "qwen3_moe_raw": (
        "Qwen3MoeConfig",
        {**BASE, **EXPERTS, "norm_topk_prob": False, "moe_intermediate_size": 16},
        {"save_original_format": False},
    ),
    "olmoe": (
        "OlmoeConfig",
        {**BASE, "head_dim": None, "intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2},
        {},
    ),
    # Without clipping, q and k reach about 3 and v about 6.
    "olmoe_clipped": (
        "OlmoeConfig",
        {**BASE, "head_dim": None, "intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.8},
        {},
    ),
    "olmo2": ("Olmo2Config", {**BASE, "head_dim": None}, {}),
    "smollm3": ("SmolLM3Config", {**BASE, "head_dim": None, "num_hidden_layers": 4}, {}),
    "gemma": ("GemmaConfig", {**BASE, "tie_word_embeddings": True}, {}),
    "gemma2": ("Gemma2Config", {**GEMMA, "attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 24}, {}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **GEMMA,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        {},
    ),
    "gemma3_wrapped": (
        "Gemma3Config",
        {
            "text_config": {**GEMMA, "query_pre_attn_scalar": 24, "final_logit_softcapping": None},
            "vision_config": GEMMA3_VISION,
            "mm_tokens_per_image": 4,
        },
        {},
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoeConfig",
        {
            "text_config": {**BASE, **EXPERTS, "moe_intermediate_size": 24, "num_hidden_layers": 2},
            "vision_config": QWEN3_VISION,
        },
        {},
    ),
    "gemma4": ("Gemma4TextConfig", GEMMA4, {}),
    "gemma4_moe": ("Gemma4TextConfig", GEMMA4_MOE, {}),
    "gemma4_ple": ("Gemma4TextConfig", GEMMA4_PLE, {}),
    "gemma4_padded": ("Gemma4TextConfig", GEMMA4_PADDED, {}),
    "gemma4_overridden": ("Gemma4TextConfig", GEMMA4_OVERRIDDEN, {}),
}


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Matrices by 1/sqrt(inputs), larger for the head and routers so that choices are clear; norms around theirs."""
    generator = torch.Generator().manual_seed(seed)
    values = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n.endswith("layer_scalar"))]
    with torch.no_grad():
        for name, value in values:
            noise = torch.randn(value.shape, generator=generator)
            if value.ndim == 1:
                bias = name.endswith("bias")
                value.copy_(noise * 0.3 if bias else value + noise * 0.2)
            else:
                gain = 4.0 if "router" in name or name.endswith("mlp.gate.weight") else 1.5
                value.copy_(noise * gain / value.shape[-1] ** 0.5)
            value.copy_(value.bfloat16().float())


def logits_of(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocabulary], one token at a time through the cache."""
    cache = transformers.DynamicCache(config=model.config)
    rows = []
    with torch.no_grad():
        for token in tokens:
            out = model(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            rows.append(out.logits[0, -1])
    return torch.stack(rows)


def golden(name: str, directory: Path) -> None:
    kind, fields, saving = GOLDENS[name]
    config = getattr(transformers, kind)(**{k: v for k, v in fields.items() if v is not None or k == "sliding_window"})
    config._attn_implementation = "eager"
    auto = transformers.AutoModelForImageTextToText if "text_config" in fields else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    randomise(model.float(), seed=len(name) + 7)
    target = directory / name
    model.to(torch.bfloat16).save_pretrained(target, **saving)
    reread = auto.from_pretrained(target, dtype=torch.float32, attn_implementation="eager")
    tokens = torch.randint(3, VOCAB, (MORE_TOKENS.get(name, TOKENS),), generator=torch.Generator().manual_seed(5)).tolist()
    logits = logits_of(reread.eval(), tokens)
    expected = {"tokens": tokens, "logits": [[float(f"{x:.7g}") for x in row] for row in logits.tolist()]}
    (target / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    (target / "generation_config.json").unlink(missing_ok=True)
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{name}: {size} bytes, logits up to {logits.abs().max():.2f}")


if __name__ == "__main__":
    for chosen in sys.argv[2:] or GOLDENS:
        golden(chosen, Path(sys.argv[1]))
