"""History -> one HTML page. In: a run's history, its configuration as text. Out: HTML text that
loads nothing, in light and dark, from phone to desk. Does not read files.

Every text of the run goes through `text`, which hides secrets and escapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from html import escape
from typing import Any

from stream_pretrain.audit.chart import STYLE, Mark, Series, line_chart
from stream_pretrain.audit.report_data import History, Session, smooth
from stream_pretrain.audit.report_style import PAGE_STYLE
from stream_pretrain.observe.redaction import redact
from stream_pretrain.units import format_count, format_duration

_WIDE, _NARROW = (1000, 300), (358, 250)
_MOST_EPOCH_MARKS = 30
_FEWEST_TO_SMOOTH = 100

_BAR_COLORS = 8


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What the page names and links to: the run's place and files, its configuration as text."""

    location: str
    config: str = ""
    links: tuple[str, ...] = ()


def page(history: History, sources: Sources) -> str:
    """The whole report."""
    name = sources.location.rstrip("/").rpartition("/")[2] or sources.location
    parts = [
        f"<h1>{text(name)}</h1><p>{text(sources.location)}</p><p>{_status(history)}</p>",
        _facts(history),
        *_charts(history),
        _validation(history),
        _time(history),
        _mixture(history),
        _sessions(history),
        _environment(history),
        _configuration(sources),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(name)}: training report</title>"
        f"<style>{PAGE_STYLE}{STYLE}</style></head>\n<body>\n{''.join(parts)}</body></html>\n"
    )


def text(value: Any) -> str:
    """Anything as text for the page: without secrets, escaped."""
    return escape(redact(str(value)))


def _status(history: History) -> str:
    if not history.sessions:
        return "No process has written anything yet."
    last = history.sessions[-1]
    when = _when(last.last_time)
    if last.reason is None:
        return f"Running, or killed: last heard of on {when}, at step {last.last_step:,}."
    return f"Stopped on {when}, at step {last.last_step:,}: {text(last.reason)}."


def _facts(history: History) -> str:
    last = history.last
    if last is None:
        return ""
    sets = list(history.evaluations.items())
    facts = {
        "step": f"{last['step']:,}",
        "tokens": format_count(last["tokens"]),
        "loss": _number(last["loss"]),
        **{f"{name} loss": _number(found[-1][1].get("loss")) for name, found in sets[:2]},
        "epoch": str(last["epoch"]),
        "tokens/s": format_count(_median(history.columns["tokens_per_second"])),
    }
    if not math.isnan(mfu := _median(history.columns["mfu"])):
        facts["MFU"] = f"{100 * mfu:.1f} %"
    facts |= {
        "time": format_duration(history.span_s),
        "restarts": str(len(history.sessions) - 1),
        "saves": str(history.saves),
    }
    if history.skipped:
        facts["updates left out"] = f"{history.skipped:,}"
    facts["data digest"] = str(last["digest"])
    cells = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in facts.items())
    return f'<dl class="facts">{cells}</dl>'


def _charts(history: History) -> list[str]:
    if not history.steps:
        return []
    marks = _marks(history)
    losses = _losses(history)
    charts = [
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
        charts.insert(2, _both(series, "Loss of each stream", marks, y_label="nats per token"))
    return ["<h2>Training</h2>", _key_to_marks(marks), *charts]


def _key_to_marks(marks: Sequence[Mark]) -> str:
    kinds = {mark.kind for mark in marks}
    said = ["dashed lines: a new epoch"] if "epoch" in kinds else []
    said += ["dotted lines and triangles: a restart"] if "restart" in kinds else []
    return f"<p>In the charts, {'; '.join(said)}.</p>" if said else ""


def _later(history: History, losses: Sequence[Series], marks: Sequence[Mark]) -> str:
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
    drawn = []
    for look, size in (("wide", _WIDE), ("narrow", _NARROW)):
        label = y_label if look == "wide" else ""
        svg = line_chart(
            series, title, y_label=label, marks=marks, size=size, log_y=log_y, standalone=False
        )
        drawn.append(svg.replace('class="chart"', f'class="chart {look}"', 1))
    return "".join(drawn)


def _losses(history: History) -> list[Series]:
    series = _with_mean(history, "loss", "training")
    for place, (name, found) in enumerate(history.evaluations.items()):
        points = [(float(step), values.get("loss", math.nan)) for step, values in found]
        series.append(
            Series(name=f"validation {redact(name)}", points=points, color=place + 1, dots=True)
        )
    return series


def _with_mean(history: History, column: str, name: str) -> list[Series]:
    """The values, and on top of many of them their running mean."""
    points = history.points(column)
    if len(history.steps) < _FEWEST_TO_SMOOTH:
        return [Series(name=name, points=points, color=0)]
    return [
        Series(name=f"{name}, each step", points=points, color=0, faint=True),
        Series(name=name, points=history.running_mean(column), color=0),
    ]


def _marks(history: History) -> list[Mark]:
    epochs = history.epochs[1:]
    stride = -(-len(epochs) // _MOST_EPOCH_MARKS) if epochs else 1
    marks = [Mark(x=step, label=f"epoch {epoch}") for step, epoch in epochs[::stride]]
    return marks + [
        Mark(x=session.step, label=f"restart at step {session.step:,}", kind="restart")
        for session in history.sessions[1:]
    ]


def _validation(history: History) -> str:
    if not history.evaluations:
        return ""
    rows = []
    for name, found in history.evaluations.items():
        step, last = found[-1]
        best_step, best = min(found, key=_loss_of)
        rows.append(
            [
                name,
                f"{step:,}",
                _number(last.get("loss")),
                _number(last.get("perplexity")),
                _number(last.get("bits_per_byte")),
                _number(best.get("loss")),
                f"{best_step:,}",
            ]
        )
    head = ["set", "step", "loss", "perplexity", "bits per byte", "best loss", "at step"]
    return "<h2>Validation</h2>" + _table(head, rows)


def _loss_of(evaluation: tuple[int, dict[str, float]]) -> float:
    loss = evaluation[1].get("loss", math.inf)
    return loss if math.isfinite(loss) else math.inf


def _time(history: History) -> str:
    spent = {name: seconds for name, seconds in history.time_spent().items() if seconds >= 0.05}
    if not spent:
        return ""
    note = (
        "<p>Not running: between the last line that a process left and the start of the next. "
        "Work that a kill took and that was done again is part of it.</p>"
    )
    rows = _shares(spent, format_duration)
    return f"<h2>Where the time went</h2>{rows}{note if history.away_s >= 0.05 else ''}"


def _mixture(history: History) -> str:
    if not history.stream_tokens:
        return ""
    return "<h2>Data mixture</h2>" + _shares(history.stream_tokens, format_count, "tokens")


def _shares(amounts: Mapping[str, float], show: Any, unit: str = "time") -> str:
    """A bar of parts and a table that names them."""
    total = sum(amounts.values()) or 1.0
    parts, rows = [], []
    for place, (name, amount) in enumerate(amounts.items()):
        color = f"b{place % _BAR_COLORS}"
        share = 100 * amount / total
        parts.append(f'<span class="{color}" style="width:{share:.3f}%"></span>')
        key = f'<td><span class="swatch {color}"></span>{text(name)}</td>'
        numbers = f'<td class="n">{show(amount)}</td><td class="n">{share:.1f} %</td>'
        rows.append(f"<tr>{key}{numbers}</tr>")
    head = f'<tr><th></th><th class="n">{unit}</th><th class="n">share</th></tr>'
    bar = f'<div class="bar">{"".join(parts)}</div>'
    return f'{bar}<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _sessions(history: History) -> str:
    if not history.sessions:
        return ""
    rows = []
    for session, following in zip(history.sessions, [*history.sessions[1:], None], strict=True):
        rows.append(
            [
                session.kind,
                _when(session.begun),
                f"{session.step:,} to {session.last_step:,}",
                format_duration(session.last_time - session.begun),
                _ending(session, following),
            ]
        )
    head = ["", "from (UTC)", "steps", "time", "ended by"]
    note = "<p>Steps that a kill took are not counted for the process that did them first.</p>"
    return "<h2>Starts and stops</h2>" + _table(head, rows) + note


def _ending(session: Session, following: Session | None) -> str:
    if session.reason is not None:
        return session.reason
    return "killed" if following is not None else "still running, or killed"


def _environment(history: History) -> str:
    if not history.sessions:
        return ""
    rows = [[name, value] for name, value in _flat(history.sessions[-1].facts)]
    if not rows:
        return ""
    return "<h2>Environment</h2>" + _table(["of the last start", ""], rows)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{prefix}{name} ")
        else:
            flat.append((f"{prefix}{name}", str(value)))
    return flat


def _configuration(sources: Sources) -> str:
    if not sources.config and not sources.links:
        return ""
    links = " · ".join(f'<a href="{escape(name)}">{text(name)}</a>' for name in sources.links)
    shown = ""
    if sources.config:
        content = f"<summary>the configuration</summary><pre>{text(sources.config)}</pre>"
        shown = f"<details>{content}</details>"
    return f"<h2>Configuration</h2><p>{links}</p>{shown}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{text(cell)}</th>" for cell in head)
    body = ""
    for row in rows:
        cells = [f"<td>{text(cell)}</td>" for cell in row[:-1]]
        body += f'<tr>{"".join(cells)}<td class="long">{text(row[-1])}</td></tr>'
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    return "not given" if value is None else f"{value:.4g}" if abs(value) < 1e6 else f"{value:.2e}"


def _median(values: Sequence[float]) -> float:
    finite = sorted(value for value in values if math.isfinite(value))
    return finite[len(finite) // 2] if finite else math.nan


def _spans_decades(values: Sequence[float]) -> bool:
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return bool(positive) and max(positive) > 1000 * min(positive)
