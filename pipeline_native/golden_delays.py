"""Norms of a trained checkpoint under delays that no architecture of the report has, beside its trace.

    python -m pipeline_native.golden_delays packages/runtime-native/test/golden/trained_arch2_4

The checkpoint was trained with other delays and more layers; here it only supplies weights. The delays reach beyond
the depth, meet it, or differ by more than in the report, so that the first and the last layers are most of the model.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from .models import Model
from .trace import record, rounded

# Dense delay, expert delay, layers.
CASES = [(2, 3, 4), (3, 1, 4), (1, 3, 4), (0, 5, 6), (5, 0, 6), (2, 2, 3)]
POSITIONS = [0, 1, 2, 31, 32]


def norms_of(directory: Path, dense: int, expert: int, depth: int) -> dict:
    config = json.loads((directory / "config.json").read_text())
    changed = {**config, "denseDelay": dense, "expertDelay": expert, "layers": config["layers"][:depth]}
    model = Model(changed).double()
    state = load_file(directory / "model.safetensors")
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    tokens = torch.tensor(json.loads((directory / "trace.json").read_text())["tokens"])[None]
    result, _, _ = record(model, tokens)
    kept = {name: {str(p): result[name][p] for p in POSITIONS} for name in ("residualNorms", "finalNorms")}
    return {"denseDelay": dense, "expertDelay": expert, "depth": depth, **kept}


def main() -> None:
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    lines = [json.dumps(rounded(norms_of(directory, *case))) for case in CASES]
    (directory / "delays.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
