"""Step -> learning rate. In: the plan's numbers. Out: a rate. A pure function of the step; no
torch, no state.

Step 0 is the first update. Warm-up rises in equal parts to the peak and is never zero: `(step + 1)
/ warmup`. Past the end the last rate stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScheduleKind = Literal["cosine", "wsd", "linear", "inverse_sqrt", "constant"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The rate of every step of a run.

    `peak`: the highest rate. `floor`: the lowest after warm-up (`min_lr`). `warmup_steps`: updates
    until the peak. `total_steps`: the run's length, None where only time ends it. `decay_steps`:
    how many of the last updates decay (wsd; the other kinds decay over all that follows warm-up).
    """

    kind: ScheduleKind
    peak: float
    floor: float = 0.0
    warmup_steps: int = 0
    total_steps: int | None = None
    decay_steps: int = 0

    def __post_init__(self) -> None:
        if self.kind in ("cosine", "linear", "wsd") and self.total_steps is None:
            raise ValueError(f"total_steps must be known for a {self.kind} schedule, got None")
        if not 0 <= self.floor <= self.peak:
            raise ValueError(f"floor must be in [0, peak = {self.peak}], got {self.floor}")

    def rate_at(self, step: int) -> float:
        """The learning rate of update `step` (from 0)."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        return self.floor + (self.peak - self.floor) * self._share(step)

    def _share(self, step: int) -> float:
        """How much of the way from floor to peak remains after warm-up: 1 at its end, 0 at the
        run's last update."""
        if self.kind == "constant":
            return 1.0
        if self.kind == "inverse_sqrt":
            start = max(self.warmup_steps, 1)
            return math.sqrt(start / max(step + 1, start))
        assert self.total_steps is not None
        decay = self.total_steps - self.warmup_steps
        if self.kind == "wsd":
            decay = min(self.decay_steps, decay)
        progress = _progress(step, self.total_steps - decay, decay)
        if self.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return 1.0 - progress


def _progress(step: int, start: int, steps: int) -> float:
    """How far update `step` is into a decay of `steps` updates from `start`; the last of them is at
    1."""
    if step < start:
        return 0.0
    return min((step + 1 - start) / steps, 1.0) if steps else 0.0
