"""Writes a model as the converter reads it: `config.json` and `model.safetensors`."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from .models import Model


def export(model: Model, directory: Path, dtype: torch.dtype) -> None:
    """Saves every parameter under its canonical name in `dtype` (float32 or bfloat16)."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")
