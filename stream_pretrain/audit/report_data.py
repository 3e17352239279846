"""Events of metrics.jsonl -> what a report shows. In: events in order. Out: History. Draws nothing.

A million steps fit: numbers are kept in arrays of doubles, events are not kept.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stream_pretrain.audit.downsample import thin
from stream_pretrain.observe.jsonl import Event

COLUMNS = ("loss", "lr", "grad_norm", "tokens_per_second", "data_wait", "mfu")
CHART_COLUMNS = 2000  # twice the widest chart's, so that no chart shows the seams

_SMOOTHING_SHARE = 0.01


@dataclass(kw_only=True)
class Session:
    """One process's part in a run, from its `start` or `resume` to its `stop`, or to a kill."""

    kind: str
    step: int
    begun: float
    facts: Mapping[str, Any]
    last_step: int
    last_time: float
    reason: str | None = None


@dataclass(kw_only=True)
class ReportData:
    """A run as its events tell it. `columns` are as long as `steps`; NaN where an event had no
    value.
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
    away_s: float = 0.0

    @property
    def span_s(self) -> float:
        """From the first event to the last."""
        if not self.sessions:
            return 0.0
        return max(0.0, self.sessions[-1].last_time - self.sessions[0].begun)

    def points(self, name: str) -> list[tuple[float, float]]:
        """A column against the step, thinned to what a chart can show."""
        return self._thinned(zip(self.steps, self.columns[name], strict=True))

    def running_mean(self, name: str) -> list[tuple[float, float]]:
        """The same, smoothed over about a hundredth of the run."""
        pairs = zip(self.steps, self.columns[name], strict=True)
        return self._thinned(smooth(pairs, len(self.steps)))

    def _thinned(self, points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        return thin(points, self.steps[0], self.steps[-1], CHART_COLUMNS) if self.steps else []

    def time_spent(self) -> dict[str, float]:
        """Seconds of the whole span by what they went into; `other` is what no event accounts
        for.
        """
        spent = {
            "training": self.training_s,
            "waiting for data": self.data_s,
            "evaluation": self.evaluation_s,
            "saving": self.save_s,
            "not running": self.away_s,
        }
        return {**spent, "other": max(0.0, self.span_s - sum(spent.values()))}


def read_report_data(events: Iterable[Event]) -> ReportData:
    """Go through the events once, in order."""
    history = ReportData()
    for event in events:
        _RECORD.get(event["event"], _ignore)(history, event)
        if history.sessions:
            session = history.sessions[-1]
            session.last_step = max(session.last_step, event["step"])
            session.last_time = max(session.last_time, event.get("time", session.last_time))
    return history


def smooth(points: Iterable[tuple[float, float]], count: int) -> Iterator[tuple[float, float]]:
    """A running mean, exponential over about a hundredth of `count` points; NaN passes
    unsmoothed.
    """
    keep = 1 - 1 / max(1.0, count * _SMOOTHING_SHARE)
    mean, weight = 0.0, 0.0
    for x, y in points:
        if not math.isfinite(y):
            yield x, y
            continue
        mean = keep * mean + (1 - keep) * y
        weight = keep * weight + (1 - keep)
        yield x, mean / weight


def _session(history: ReportData, event: Event) -> None:
    begun = event.get("time", 0.0)
    if history.sessions:
        history.away_s += max(0.0, begun - history.sessions[-1].last_time)
    facts = {k: v for k, v in event.items() if k not in ("event", "step", "time", "nonfinite")}
    history.sessions.append(
        Session(
            kind=event["event"],
            step=event["step"],
            begun=begun,
            facts=facts,
            last_step=event["step"],
            last_time=begun,
        )
    )


def _step(history: ReportData, event: Event) -> None:
    history.last = event
    history.steps.append(event["step"])
    for name, column in history.columns.items():
        value = event.get(name)
        column.append(math.nan if value is None else value)
    epoch = event.get("epoch", 0)
    if not history.epochs or history.epochs[-1][1] != epoch:
        history.epochs.append((event["step"], epoch))
    seconds, waited = event.get("seconds", 0.0), event.get("data_wait", 0.0)
    history.training_s += seconds * (1 - waited)
    history.data_s += seconds * waited
    history.skipped += event.get("applied") in (False, 0)
    history.stream_tokens.update(event.get("stream_tokens") or {})
    for name, loss in (event.get("stream_loss") or {}).items():
        if loss is not None:
            history.stream_losses.setdefault(name, []).append((event["step"], loss))


def _evaluation(history: ReportData, event: Event) -> None:
    skip = ("event", "step", "time", "set", "seconds", "nonfinite")
    values = {k: v for k, v in event.items() if k not in skip and isinstance(v, (int, float))}
    history.evaluations.setdefault(event.get("set", "validation"), []).append(
        (event["step"], values)
    )
    history.evaluation_s += event.get("seconds", 0.0)


def _save(history: ReportData, event: Event) -> None:
    history.saves += 1
    history.save_s += event.get("seconds", 0.0)


def _stop(history: ReportData, event: Event) -> None:
    if history.sessions:
        history.sessions[-1].reason = str(event.get("reason", "unknown"))


def _ignore(history: ReportData, event: Event) -> None:
    """Events of a later version are not an error."""


_RECORD = {
    "start": _session,
    "resume": _session,
    "step": _step,
    "evaluation": _evaluation,
    "save": _save,
    "stop": _stop,
}
