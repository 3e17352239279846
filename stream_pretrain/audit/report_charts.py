"""Draw the charts of a report as SVG, each in a wide and in a narrow version.

What goes in is the `ReportData` of a run; what comes out are parts of an HTML page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stream_pretrain.audit.report_data import ReportData, smooth
from stream_pretrain.audit.svg_chart import Marker, Series, line_chart
from stream_pretrain.redaction import redact

_WIDE, _NARROW = (1000, 300), (358, 250)
_MAX_EPOCH_MARKERS = 30
_MIN_STEPS_TO_SMOOTH = 100


def charts(data: ReportData) -> list[str]:
    """Return the charts as parts of a page, after a heading; none before the first step."""
    if not data.steps:
        return []
    markers = _markers(data)
    losses = _losses(data)
    parts = [
        _wide_and_narrow(losses, "Loss", markers, y_label="nats per token"),
        _later_loss(data, losses, markers),
        _wide_and_narrow([Series(name="lr", points=data.points("lr"))], "Learning rate", markers),
        _wide_and_narrow(
            _with_mean(data, "grad_norm", "gradient norm"),
            "Gradient norm, before clipping",
            markers,
            log_y=_spans_decades(data.columns["grad_norm"]),
        ),
        _wide_and_narrow(
            _with_mean(data, "tokens_per_second", "tokens/s"),
            "Throughput",
            markers,
            y_label="tokens per second",
        ),
        _wide_and_narrow(
            [Series(name="data", points=[(x, 100 * y) for x, y in data.points("data_wait")])],
            "Time spent waiting for data",
            markers,
            y_label="% of training time",
        ),
    ]
    if data.stream_losses:
        series = [
            Series(name=name, points=list(smooth(points, len(points))))
            for name, points in data.stream_losses.items()
        ]
        parts.insert(
            2, _wide_and_narrow(series, "Loss of each stream", markers, y_label="nats per token")
        )
    return ["<h2>Training</h2>", _markers_note(markers), *parts]


def _markers_note(markers: Sequence[Marker]) -> str:
    kinds = {marker.kind for marker in markers}
    notes = ["dashed lines: a new epoch"] if "epoch" in kinds else []
    notes += ["dotted lines and triangles: a restart"] if "restart" in kinds else []
    return f"<p>In the charts, {'; '.join(notes)}.</p>" if notes else ""


def _later_loss(data: ReportData, losses: Sequence[Series], markers: Sequence[Marker]) -> str:
    """Return the chart of the loss without the first fifth of the steps."""
    if len(data.steps) < _MIN_STEPS_TO_SMOOTH:
        return ""
    begin = data.steps[len(data.steps) // 5]
    later = [
        replace(one, points=[point for point in one.points if point[0] >= begin]) for one in losses
    ]
    return _wide_and_narrow(
        later, f"Loss from step {begin:,.0f}", markers, y_label="nats per token"
    )


def _wide_and_narrow(
    series: Sequence[Series],
    title: str,
    markers: Sequence[Marker],
    *,
    y_label: str = "",
    log_y: bool = False,
) -> str:
    """Return a wide and a narrow chart; the page's style shows one of them."""
    series = [replace(one, name=redact(one.name)) for one in series]
    versions = []
    for version, size in (("wide", _WIDE), ("narrow", _NARROW)):
        svg = line_chart(
            series,
            title,
            y_label=y_label if version == "wide" else "",
            markers=markers,
            size=size,
            log_y=log_y,
            standalone=False,
        )
        versions.append(svg.replace('class="chart"', f'class="chart {version}"', 1))
    return "".join(versions)


def _losses(data: ReportData) -> list[Series]:
    series = _with_mean(data, "loss", "training")
    for number, (name, results) in enumerate(data.evaluations.items(), start=1):
        points = [(float(step), values.get("loss", math.nan)) for step, values in results]
        series.append(Series(name=f"validation {name}", points=points, color=number, dots=True))
    return series


def _with_mean(data: ReportData, column: str, name: str) -> list[Series]:
    """Return the values, with their running mean on top if there are many."""
    points = data.points(column)
    if len(data.steps) < _MIN_STEPS_TO_SMOOTH:
        return [Series(name=name, points=points, color=0)]
    return [
        Series(name=f"{name}, each step", points=points, color=0, background=True),
        Series(name=name, points=data.running_mean(column), color=0),
    ]


def _markers(data: ReportData) -> list[Marker]:
    epochs = data.epochs[1:]
    stride = -(-len(epochs) // _MAX_EPOCH_MARKERS) if epochs else 1
    markers = [Marker(x=step, label=f"epoch {epoch}") for step, epoch in epochs[::stride]]
    return markers + [
        Marker(x=session.step, label=f"restart at step {session.step:,}", kind="restart")
        for session in data.sessions[1:]
    ]


def _spans_decades(values: Sequence[float]) -> bool:
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return bool(positive) and max(positive) > 1000 * min(positive)
