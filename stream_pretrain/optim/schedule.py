"""Compute the learning rate of a step from the numbers of the plan.

The rate is a pure function of the step; there is no state. Step 0 is the first update. Warm-up
rises in equal parts to the peak and is never zero: `(step + 1) / warmup`. A decay is at the peak in
its first update and would reach the floor in the one after its last, so no update is wasted on a
rate of zero. After the end the rate stays at the floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScheduleKind = Literal["cosine", "wsd", "linear", "inverse_sqrt", "constant"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate of every step of a run.

    `peak`: the highest rate. `floor`: what the decay ends at (`min_lr`). `warmup_steps`: updates
    until the peak. `total_steps`: the run's length, None where only time ends it. `decay_steps`:
    the decay's length, for wsd counted back from the end of the run, for cosine and linear from the
    end of warm-up (None: to the end of the run).
    """

    kind: ScheduleKind
    peak: float
    floor: float = 0.0
    warmup_steps: int = 0
    total_steps: int | None = None
    decay_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= self.peak:
            raise ValueError(f"floor must be in [0, peak = {self.peak}], got {self.floor}")
        if self.kind == "wsd" and (self.total_steps is None or self.decay_steps is None):
            raise ValueError(
                "total_steps and decay_steps must be known for a wsd schedule, "
                f"got {self.total_steps} and {self.decay_steps}"
            )
        open_end = self.total_steps is None and self.decay_steps is None
        if self.kind in ("cosine", "linear") and open_end:
            raise ValueError(
                f"total_steps or decay_steps must be known for a {self.kind} schedule, got neither"
            )

    def rate_at(self, step: int) -> float:
        """Return the learning rate of update `step` (from 0)."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return self.peak
        if self.kind == "inverse_sqrt":
            start = max(self.warmup_steps, 1)
            return max(self.floor, self.peak * math.sqrt(start / (step + 1)))
        return self.floor + (self.peak - self.floor) * self._remaining(step)

    def _remaining(self, step: int) -> float:
        """Return the share of the way from floor to peak: 1 before the decay, 0 after it."""
        start, length = self._decay()
        progress = min(max(step - start, 0) / length, 1.0) if length else float(step >= start)
        if self.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return 1.0 - progress

    def _decay(self) -> tuple[int, int]:
        """Return the first step and the length of the decay."""
        if self.kind == "wsd":
            assert self.total_steps is not None and self.decay_steps is not None
            length = min(self.decay_steps, max(self.total_steps - self.warmup_steps, 0))
            return self.total_steps - length, length
        if self.decay_steps is not None:
            return self.warmup_steps, self.decay_steps
        assert self.total_steps is not None
        return self.warmup_steps, max(self.total_steps - self.warmup_steps, 0)
