"""Measure throughput, and the time that goes into data, saves and evaluations.

An interval lies between two calls of `Meter.end_interval`. The host runs ahead of the device, so an
interval is accurate only if the device's values were read right before it ends, as the observer
does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

Activity = Literal["data", "save", "evaluation"]

_HISTORY_INTERVALS = 32


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rates of one interval. Training time is the interval without its saves and evaluations.

    `tokens_per_second` and `data_wait` are relative to training time, `save_share` to the whole
    interval.
    """

    seconds: float
    training_seconds: float
    steps: int
    tokens: int
    tokens_per_second: float
    data_wait: float
    save_share: float
    mfu: float | None

    def per_step(self) -> dict[str, Any]:
        """Return the fields of a step event; `seconds` is the training time per step."""
        fields: dict[str, Any] = {
            "tokens_per_second": self.tokens_per_second,
            "data_wait": self.data_wait,
            "seconds": self.training_seconds / self.steps if self.steps else 0.0,
        }
        return fields if self.mfu is None else {**fields, "mfu": self.mfu}


class Meter:
    """Count tokens and time in one process.

    `flops_per_token` covers the forward and backward pass of the model, `peak_flops` is the sum
    over all devices of the job. MFU is their ratio at the measured throughput (PaLM, arXiv
    2204.02311, appendix B), or None unless both are known. `last` has the seconds of the latest
    wait, save and evaluation.
    """

    def __init__(
        self,
        *,
        flops_per_token: float | None = None,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._flops_per_token = flops_per_token
        self._peak_flops = peak_flops
        self._clock = clock
        self._spent: dict[str, float] = {"data": 0.0, "save": 0.0, "evaluation": 0.0}
        self.last: dict[str, float] = {}
        self._history: deque[tuple[float, int]] = deque(maxlen=_HISTORY_INTERVALS)
        self._steps = 0
        self._tokens = 0
        self._interval_began = clock()

    def reset(self) -> None:
        """Discard all measurements and start an interval, right before the first step."""
        self._spent = dict.fromkeys(self._spent, 0.0)
        self._history.clear()
        self._steps = self._tokens = 0
        self._interval_began = self._clock()

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Count the time of the `with` block as a wait for data, a save or an evaluation."""
        began = self._clock()
        try:
            yield
        finally:
            self.add(activity, self._clock() - began)

    def add(self, activity: Activity, seconds: float) -> None:
        """Add `seconds` that were measured elsewhere."""
        self._spent[activity] += seconds
        self.last[activity] = seconds

    def advance(self, tokens: int) -> None:
        """Count one more step with `tokens` targets."""
        self._steps += 1
        self._tokens += tokens

    def end_interval(self) -> Rates:
        """End the interval, start the next one, and return the rates."""
        now = self._clock()
        seconds = max(now - self._interval_began, 1e-9)
        blocked = self._spent["save"] + self._spent["evaluation"]
        training = max(seconds - blocked, 1e-9)
        speed = self._tokens / training
        rates = Rates(
            seconds=seconds,
            training_seconds=training,
            steps=self._steps,
            tokens=self._tokens,
            tokens_per_second=speed,
            data_wait=min(1.0, self._spent["data"] / training),
            save_share=min(1.0, self._spent["save"] / seconds),
            mfu=self._mfu(speed),
        )
        if self._steps:
            self._history.append((seconds, self._tokens))
        self._spent = dict.fromkeys(self._spent, 0.0)
        self._steps = self._tokens = 0
        self._interval_began = now
        return rates

    def seconds_left(self, tokens_left: int | None) -> float | None:
        """Estimate the seconds for `tokens_left`, saves and evaluations included.

        The estimate uses the latest intervals. The first interval alone gives None, because it
        includes the start of workers and compilation.
        """
        if tokens_left is None or len(self._history) < 2:
            return None
        recent = list(self._history)
        if len(recent) < _HISTORY_INTERVALS:
            recent = recent[1:]
        tokens = sum(count for _, count in recent)
        return None if tokens == 0 else max(0, tokens_left) * sum(s for s, _ in recent) / tokens

    def _mfu(self, tokens_per_second: float) -> float | None:
        if not self._flops_per_token or not self._peak_flops:
            return None
        return tokens_per_second * self._flops_per_token / self._peak_flops
