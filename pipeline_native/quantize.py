"""Q4_0 as the report defines it (§3.10.3), to trace what a quantised model computes."""

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32


def q4(weight: Tensor) -> Tensor:
    """A matrix [out, in] after Q4_0 and back, float32: per 32 inputs s = max|w| / 7 in half precision, 16 levels."""
    rows, columns = weight.shape
    blocks = F.pad(weight.float(), (0, -columns % BLOCK)).view(rows, -1, BLOCK)
    scale = (blocks.abs().amax(-1, keepdim=True) / 7).half().float()
    levels = (blocks * torch.where(scale == 0, scale, 1 / scale)).round().clamp(-8, 7)
    return (levels * scale).view(rows, -1)[:, :columns]


def q4_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint whose matrices went through Q4_0; norms and routers stay as they are, as in the file format."""
    return {name: q4(w) if w.dim() == 2 and "router" not in name else w.float() for name, w in state.items()}
