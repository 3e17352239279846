"""Summarize the events of `metrics.jsonl` for a report.

What goes in are the events in order; what comes out is one `ReportData`. The numbers of each step
are kept in arrays of doubles and the events are not kept, so that a million steps fit in memory.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stream_pretrain.audit.downsample import downsample
from stream_pretrain.observe.jsonl import Event

COLUMNS = ("loss", "lr", "grad_norm", "tokens_per_second", "data_wait", "mfu")
CHART_COLUMNS = 2000  # twice the pixels of the widest chart, so that no chart loses detail

_SMOOTHING_SHARE = 0.01


@dataclass(kw_only=True)
class Session:
    """One process of a run, from its `start` or `resume` event to its `stop` event or a kill."""

    kind: str
    step: int
    started: float
    facts: Mapping[str, Any]
    last_step: int
    last_time: float
    reason: str | None = None


@dataclass(kw_only=True)
class ReportData:
    """The numbers of a run.

    `columns` are as long as `steps`, with NaN where an event has no value.
    """

    steps: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("d") for name in COLUMNS}
    )
    stream_losses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    evaluations: dict[str, list[tuple[int, dict[str, float]]]] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    stream_tokens: dict[str, float] = field(default_factory=dict)
    last: Event | None = None
    saves: int = 0
    skipped: int = 0
    training_s: float = 0.0
    data_s: float = 0.0
    evaluation_s: float = 0.0
    save_s: float = 0.0
    downtime_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds from the first event to the last."""
        if not self.sessions:
            return 0.0
        return max(0.0, self.sessions[-1].last_time - self.sessions[0].started)

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return (step, value) of a column, downsampled to what a chart can show."""
        return self._downsampled(zip(self.steps, self.columns[name], strict=True))

    def running_mean(self, name: str) -> list[tuple[float, float]]:
        """Return the same points, smoothed over about a hundredth of the run."""
        pairs = zip(self.steps, self.columns[name], strict=True)
        return self._downsampled(smooth(pairs, len(self.steps)))

    def _downsampled(self, points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        if not self.steps:
            return []
        return downsample(points, self.steps[0], self.steps[-1], CHART_COLUMNS)

    def time_spent(self) -> dict[str, float]:
        """Return the seconds of the run by activity; `other` is the time without an event."""
        spent = {
            "training": self.training_s,
            "waiting for data": self.data_s,
            "evaluation": self.evaluation_s,
            "saving": self.save_s,
            "not running": self.downtime_s,
        }
        return {**spent, "other": max(0.0, self.total_s - sum(spent.values()))}


def read_report_data(events: Iterable[Event]) -> ReportData:
    """Summarize the events in one pass."""
    data = ReportData()
    for event in events:
        _HANDLERS.get(event["event"], _ignore)(data, event)
        if data.sessions:
            session = data.sessions[-1]
            session.last_step = max(session.last_step, event["step"])
            session.last_time = max(session.last_time, event.get("time", session.last_time))
    return data


def smooth(points: Iterable[tuple[float, float]], count: int) -> Iterator[tuple[float, float]]:
    """Yield an exponential running mean over about a hundredth of `count` points.

    Values that are not finite are passed through.
    """
    decay = 1 - 1 / max(1.0, count * _SMOOTHING_SHARE)
    mean, weight = 0.0, 0.0
    for x, y in points:
        if not math.isfinite(y):
            yield x, y
            continue
        mean = decay * mean + (1 - decay) * y
        weight = decay * weight + (1 - decay)
        yield x, mean / weight


def _session(data: ReportData, event: Event) -> None:
    started = event.get("time", 0.0)
    if data.sessions:
        data.downtime_s += max(0.0, started - data.sessions[-1].last_time)
    facts = {k: v for k, v in event.items() if k not in ("event", "step", "time", "nonfinite")}
    data.sessions.append(
        Session(
            kind=event["event"],
            step=event["step"],
            started=started,
            facts=facts,
            last_step=event["step"],
            last_time=started,
        )
    )


def _step(data: ReportData, event: Event) -> None:
    data.last = event
    data.steps.append(event["step"])
    for name, column in data.columns.items():
        value = event.get(name)
        column.append(math.nan if value is None else value)
    epoch = event.get("epoch", 0)
    if not data.epochs or data.epochs[-1][1] != epoch:
        data.epochs.append((event["step"], epoch))
    seconds, data_wait = event.get("seconds", 0.0), event.get("data_wait", 0.0)
    data.training_s += seconds * (1 - data_wait)
    data.data_s += seconds * data_wait
    data.skipped += event.get("applied") in (False, 0)
    data.stream_tokens.update(event.get("stream_tokens") or {})
    for name, loss in (event.get("stream_loss") or {}).items():
        if loss is not None:
            data.stream_losses.setdefault(name, []).append((event["step"], loss))


def _evaluation(data: ReportData, event: Event) -> None:
    other_keys = ("event", "step", "time", "set", "seconds", "nonfinite")
    values = {k: v for k, v in event.items() if k not in other_keys and isinstance(v, (int, float))}
    data.evaluations.setdefault(event.get("set", "validation"), []).append((event["step"], values))
    data.evaluation_s += event.get("seconds", 0.0)


def _save(data: ReportData, event: Event) -> None:
    data.saves += 1
    data.save_s += event.get("seconds", 0.0)


def _stop(data: ReportData, event: Event) -> None:
    if data.sessions:
        data.sessions[-1].reason = str(event.get("reason", "unknown"))


def _ignore(data: ReportData, event: Event) -> None:
    """Ignore an event of a later version."""


_HANDLERS = {
    "start": _session,
    "resume": _session,
    "step": _step,
    "evaluation": _evaluation,
    "save": _save,
    "stop": _stop,
}
