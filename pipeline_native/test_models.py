"""Checks the building blocks against published implementations: `python -m unittest pipeline_native.test_models`."""

import unittest

import torch

from .configs import model_config
from .models import Model, Trace, initialise

SHAPE = {"dim": 64, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "ff": 100, "vocab": 97, "context": 64}
MOE = {"experts": 4, "top_k": 2, "expert_dim": 48}
COMMON = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "attn_implementation": "eager",
}


def renamed(model: Model) -> dict:
    """The state dict in transformers' names."""
    pairs = [(".attn_norm.", ".input_layernorm."), (".ffn_norm.", ".post_attention_layernorm."), (".attn.", ".self_attn.")]
    state = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in pairs:
            name = name.replace(ours, theirs)
        state[name if name.startswith("lm_head") else f"model.{name}"] = tensor
    return state


def tokens() -> torch.Tensor:
    return torch.randint(0, 97, (2, 20), generator=torch.Generator().manual_seed(3))


class PublishedModels(unittest.TestCase):
    def same(self, ours: Model, theirs, state: dict) -> None:
        theirs.double().load_state_dict(state)
        with torch.no_grad():
            difference = (ours(tokens()) - theirs(tokens()).logits).abs().max().item()
        # transformers computes rotary angles in float32.
        self.assertLess(difference, 1e-5)

    def test_dense_layer_is_llama(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = {**model_config("arch3", name="test", **SHAPE), "combineStyle": "sequential"}
        ours = initialise(Model(config), 7, std=0.15, norm_spread=0.2).double()
        state = {name.replace(".ffn.", ".mlp."): tensor for name, tensor in renamed(ours).items()}
        self.same(ours, LlamaForCausalLM(LlamaConfig(**COMMON, intermediate_size=100)), state)

    def test_routed_experts_are_mixtral(self):
        from transformers import MixtralConfig, MixtralForCausalLM

        config = model_config("parallel_sqrt2", name="test", **SHAPE, **MOE)
        config["combineStyle"] = "sequential"
        config["layers"] = [{key: part for key, part in layer.items() if key != "ffn"} for layer in config["layers"]]
        ours = initialise(Model(config), 7, std=0.15, norm_spread=0.2).double()
        theirs = MixtralForCausalLM(
            MixtralConfig(
                **COMMON,
                intermediate_size=48,
                num_local_experts=4,
                num_experts_per_tok=2,
                sliding_window=None,
                experts_implementation="eager",
            )
        )
        state = {}
        for name, tensor in renamed(ours).items():
            if ".experts." not in name:
                state[name.replace(".router.", ".mlp.gate.")] = tensor
        for number, layer in enumerate(ours.layers):
            at = f"model.layers.{number}.mlp.experts."
            state[at + "gate_up_proj"] = torch.stack(
                [torch.cat([e.gate_proj.weight, e.up_proj.weight]) for e in layer.experts]
            )
            state[at + "down_proj"] = torch.stack([e.down_proj.weight for e in layer.experts])
        self.same(ours, theirs, state)


class Delays(unittest.TestCase):
    """Wirings against the equations written out by hand, for four layers: one injection in the middle, two clamped."""

    def build(self, arch: str) -> tuple[Model, torch.Tensor]:
        config = model_config(arch, name="test", **{**SHAPE, "layers": 4}, **MOE)
        model = initialise(Model(config), 7, std=0.15, norm_spread=0.2).double()
        return model, model.embed_tokens(tokens())

    def expect(self, model: Model, last: torch.Tensor) -> None:
        torch.testing.assert_close(model(tokens()), model.norm(last) @ model.lm_head.weight.T)

    def test_arch2_4(self):
        model, x = self.build("arch2_4")
        l0, l1, l2, l3 = model.layers
        out0 = x + l0.attend(x)  # no FFN yet, no expert output due
        mid1 = out0 + l1.attend(out0)
        out1 = mid1 + l1.feed(out0)
        mid2 = out1 + l2.attend(out1)
        out2 = mid2 + l2.feed(out1) + l0.mix(out0, Trace())
        mid3 = out2 + l3.attend(out2)
        due = l1.mix(mid1, Trace()) + l2.mix(mid2, Trace()) + l3.mix(mid3, Trace())
        self.expect(model, mid3 + l3.feed(out2) + due)

    def test_arch2_4_sync(self):
        model, x = self.build("arch2_4_sync")
        before = None
        for layer in model.layers:
            mid = x + layer.attend(x)
            x = before = mid + layer.mix(mid, Trace()) + (0 if before is None else layer.feed(before))
        self.expect(model, x)

    def test_arch4(self):
        model, x = self.build("arch4")
        l0, l1, l2, l3 = model.layers
        out0 = x + l0.attend(x) + l0.feed(x)
        out1 = out0 + l1.attend(out0) + l1.feed(out0)
        out2 = out1 + l2.attend(out1) + l2.feed(out1) + l0.mix(x, Trace())
        due = l1.mix(out0, Trace()) + l2.mix(out1, Trace()) + l3.mix(out2, Trace())
        self.expect(model, out2 + l3.attend(out2) + l3.feed(out2) + due)

    def test_no_position_sees_the_future(self):
        for arch in ("arch1", "arch2_4", "arch2_4_sync", "arch3", "arch4", "arch5", "parallel_sqrt2"):
            moe = {} if arch in ("arch1", "arch3", "arch5") else MOE
            model = initialise(Model(model_config(arch, name="test", **SHAPE, **moe)), 7, std=0.15).double()
            changed = tokens()
            changed[:, 10:] = 0
            torch.testing.assert_close(model(tokens())[:, :10], model(changed)[:, :10], msg=arch)


if __name__ == "__main__":
    unittest.main()
