"""Makes the random golden checkpoints and traces that the engine's tests compare against.

    python -m pipeline_native.golden packages/runtime-native/test/golden

Weights are random, rounded to bfloat16 and stored so; the trace is computed in float64 from the rounded values.
The `llama` golden comes from transformers alone.
"""

import sys
from pathlib import Path

import torch

from .configs import model_config
from .export import export
from .models import Model, Trace, initialise
from .trace import logits_part, margins, norms, record, write_trace

# The seed is one of few for which no choice (arg max, expert) is near a tie.
TOKENS, SEED = 24, 96
MOE = {"experts": 4, "top_k": 2, "expert_dim": 48}
# Widths that are no multiple of a tile (128), and one (100) that is no multiple of a block (32).
GOLDENS = {
    "arch1": {"dim": 96, "layers": 6, "heads": 4, "kv_heads": 4, "ff": 160},
    "arch2_4": {"dim": 64, "layers": 6, "heads": 4, "kv_heads": 2, "ff": 160, **MOE},
    "arch2_4_sync": {"dim": 64, "layers": 6, "heads": 4, "kv_heads": 4, "ff": 100, **MOE},
    "arch3": {"dim": 80, "layers": 6, "heads": 5, "kv_heads": 1, "ff": 160},
    "arch4": {"dim": 64, "layers": 6, "heads": 4, "kv_heads": 2, "ff": 160, "tied": True, **MOE},
    "arch5": {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 4, "ff": 160},
    "parallel_sqrt2": {"dim": 64, "layers": 6, "heads": 4, "kv_heads": 2, "ff": 160, **MOE},
}


def architecture_golden(arch: str, shape: dict, directory: Path) -> None:
    config = model_config(arch, name=f"golden-{arch}", head_dim=16, vocab=97, context=64, **shape)
    model = initialise(Model(config), SEED, std=0.12, norm_spread=0.2).to(torch.bfloat16)
    export(model, directory, torch.bfloat16)
    model.double()
    tokens = torch.randint(0, 97, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))
    result, logits, trace = record(model, tokens)
    write_trace(directory, {**result, **logits_part(logits)})
    print(margins(arch, logits, trace))


def llama_golden(directory: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=131,
        hidden_size=64,
        intermediate_size=100,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        rms_norm_eps=1e-5,
        max_position_embeddings=128,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.12 * noise)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    tokens = torch.randint(0, 131, (1, 40), generator=generator)
    with torch.no_grad():
        output = model(tokens, output_hidden_states=True)
    hidden = list(output.hidden_states[1:])
    write_trace(
        directory,
        {
            "about": "Norms are L2, [position][layer], without the last layer, whose state transformers norms first.",
            "tokens": tokens[0].tolist(),
            "residualNorms": norms(hidden[:-1]),
            "finalNorms": hidden[-1][0].norm(dim=-1).tolist(),
            **logits_part(output.logits[0]),
        },
    )
    print(margins("llama", output.logits[0], Trace()))


def main() -> None:
    root = Path(sys.argv[1])
    for arch, shape in GOLDENS.items():
        architecture_golden(arch, shape, root / arch)
    llama_golden(root / "llama")


if __name__ == "__main__":
    main()
