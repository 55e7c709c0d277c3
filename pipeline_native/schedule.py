"""The share of the peak learning rate that a step uses."""

import math
from dataclasses import dataclass
from pathlib import Path

FLOOR = 1 / 30


@dataclass
class Schedule:
    """Linear warm-up, then a cosine over all steps, or a constant rate with a linear decay at the end.

    `kind` "constant" decays over the last fifth of `steps`, or from the moment that the file `finish` is there: over
    as many steps as it says, and training ends with them.
    """

    kind: str
    warmup: int
    steps: int
    decay_from: int | None = None
    finish: Path | None = None

    def share(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "cosine":
            done = (step - self.warmup) / max(1, self.steps - self.warmup)
            return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * done)) / 2
        start = self.decay_from if self.decay_from is not None else self.steps * 4 // 5
        return max(FLOOR, min(1.0, (self.steps - step) / max(1, self.steps - start)))

    def look(self, step: int) -> None:
        """Begins the decay at `step` if the file asks for it."""
        if self.decay_from is None and self.finish is not None and self.finish.exists():
            self.decay_from, self.steps = step, step + int(self.finish.read_text() or 500)
