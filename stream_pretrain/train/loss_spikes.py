"""Is this loss a spike? In: losses in order. Out: a limit, a verdict. Pure over its window; does
not go back or skip.

A loss above `mean + sigma * deviation` of the last `window` losses is a spike, and so is one that
is not finite. Half a window must have been seen before anything is judged. A spike itself never
enters the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any


class SpikeDetector:
    """The rule with its window. `record` is the state's own dictionary, so a checkpoint holds the
    statistics.
    """

    def __init__(self, *, sigma: float, window: int, record: dict[str, Any]) -> None:
        self._sigma = sigma
        self._window = window
        self._record = record

    def adopt(self, record: dict[str, Any]) -> None:
        """Go on with the statistics of another state."""
        self._record = record

    @property
    def limit(self) -> float:
        """The highest loss that is no spike, infinite while too little has been seen."""
        return spike_limit(self._losses, sigma=self._sigma, window=self._window)

    def judge(self, loss: float | None) -> bool:
        """True for a spike; any other loss joins the window."""
        if loss is None or not math.isfinite(loss) or loss > self.limit:
            return True
        self._losses.append(loss)
        del self._losses[: -self._window]
        return False

    @property
    def _losses(self) -> list[float]:
        losses: list[float] = self._record.setdefault("losses", [])
        return losses


def spike_limit(losses: Sequence[float], *, sigma: float, window: int) -> float:
    """`mean + sigma * deviation`; infinite below half a window. A flat stretch still allows one per
    cent.
    """
    if len(losses) < max(2, window // 2):
        return math.inf
    mean = fmean(losses)
    return mean + sigma * max(pstdev(losses), abs(mean) * 0.01)
