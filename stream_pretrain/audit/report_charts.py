"""History -> the charts of a report. In: a run's history. Out: SVG for a page, each chart for a
desk and for a phone. Knows nothing of the page around them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stream_pretrain.audit.report_data import ReportData, smooth
from stream_pretrain.audit.svg_chart import Mark, Series, line_chart
from stream_pretrain.redaction import redact

_WIDE, _NARROW = (1000, 300), (358, 250)
_MOST_EPOCH_MARKS = 30
_FEWEST_TO_SMOOTH = 100


def charts(history: ReportData) -> list[str]:
    """The charts as parts of a page, with a heading; none before the first step."""
    if not history.steps:
        return []
    marks = _marks(history)
    losses = _losses(history)
    drawn = [
        _both(losses, "Loss", marks, y_label="nats per token"),
        _later(history, losses, marks),
        _both([Series(name="lr", points=history.points("lr"))], "Learning rate", marks),
        _both(
            _with_mean(history, "grad_norm", "gradient norm"),
            "Gradient norm, before clipping",
            marks,
            log_y=_spans_decades(history.columns["grad_norm"]),
        ),
        _both(
            _with_mean(history, "tokens_per_second", "tokens/s"),
            "Throughput",
            marks,
            y_label="tokens per second",
        ),
        _both(
            [Series(name="data", points=[(x, 100 * y) for x, y in history.points("data_wait")])],
            "Time spent waiting for data",
            marks,
            y_label="% of training time",
        ),
    ]
    if history.stream_losses:
        series = [
            Series(name=name, points=list(smooth(points, len(points))))
            for name, points in history.stream_losses.items()
        ]
        drawn.insert(2, _both(series, "Loss of each stream", marks, y_label="nats per token"))
    return ["<h2>Training</h2>", _key_to_marks(marks), *drawn]


def _key_to_marks(marks: Sequence[Mark]) -> str:
    kinds = {mark.kind for mark in marks}
    said = ["dashed lines: a new epoch"] if "epoch" in kinds else []
    said += ["dotted lines and triangles: a restart"] if "restart" in kinds else []
    return f"<p>In the charts, {'; '.join(said)}.</p>" if said else ""


def _later(history: ReportData, losses: Sequence[Series], marks: Sequence[Mark]) -> str:
    """The loss without its steep beginning."""
    if len(history.steps) < _FEWEST_TO_SMOOTH:
        return ""
    begin = history.steps[len(history.steps) // 5]
    cut = [
        replace(one, points=[point for point in one.points if point[0] >= begin]) for one in losses
    ]
    return _both(cut, f"Loss from step {begin:,.0f}", marks, y_label="nats per token")


def _both(
    series: Sequence[Series],
    title: str,
    marks: Sequence[Mark],
    *,
    y_label: str = "",
    log_y: bool = False,
) -> str:
    """A chart for a desk and one for a phone; the page's style shows one of them."""
    series = [replace(one, name=redact(one.name)) for one in series]
    drawn = []
    for look, size in (("wide", _WIDE), ("narrow", _NARROW)):
        svg = line_chart(
            series,
            title,
            y_label=y_label if look == "wide" else "",
            marks=marks,
            size=size,
            log_y=log_y,
            standalone=False,
        )
        drawn.append(svg.replace('class="chart"', f'class="chart {look}"', 1))
    return "".join(drawn)


def _losses(history: ReportData) -> list[Series]:
    series = _with_mean(history, "loss", "training")
    for place, (name, found) in enumerate(history.evaluations.items()):
        points = [(float(step), values.get("loss", math.nan)) for step, values in found]
        series.append(Series(name=f"validation {name}", points=points, color=place + 1, dots=True))
    return series


def _with_mean(history: ReportData, column: str, name: str) -> list[Series]:
    """The values, and on top of many of them their running mean."""
    points = history.points(column)
    if len(history.steps) < _FEWEST_TO_SMOOTH:
        return [Series(name=name, points=points, color=0)]
    return [
        Series(name=f"{name}, each step", points=points, color=0, faint=True),
        Series(name=name, points=history.running_mean(column), color=0),
    ]


def _marks(history: ReportData) -> list[Mark]:
    epochs = history.epochs[1:]
    stride = -(-len(epochs) // _MOST_EPOCH_MARKS) if epochs else 1
    marks = [Mark(x=step, label=f"epoch {epoch}") for step, epoch in epochs[::stride]]
    return marks + [
        Mark(x=session.step, label=f"restart at step {session.step:,}", kind="restart")
        for session in history.sessions[1:]
    ]


def _spans_decades(values: Sequence[float]) -> bool:
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return bool(positive) and max(positive) > 1000 * min(positive)
