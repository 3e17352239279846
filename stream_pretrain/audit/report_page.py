"""History -> one HTML page. In: a run's history, its configuration as text. Out: HTML text that
loads nothing, in light and dark, from phone to desk. Does not read files.

Every text of the run goes through `text`, which hides secrets and escapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from typing import Any

from stream_pretrain.audit.report_charts import charts
from stream_pretrain.audit.report_data import ReportData, Session
from stream_pretrain.audit.report_style import PAGE_STYLE
from stream_pretrain.audit.svg_chart import STYLE
from stream_pretrain.redaction import redact
from stream_pretrain.units import format_count, format_duration

_BAR_COLORS = 8


@dataclass(frozen=True, kw_only=True)
class ReportSources:
    """What the page names and links to: the run's place and files, its configuration as text."""

    location: str
    config: str = ""
    links: tuple[str, ...] = ()


def page(history: ReportData, sources: ReportSources) -> str:
    """The whole report."""
    name = sources.location.rstrip("/").rpartition("/")[2] or sources.location
    parts = [
        f"<h1>{text(name)}</h1><p>{text(sources.location)}</p><p>{_status(history)}</p>",
        _facts(history),
        *charts(history),
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


def _status(history: ReportData) -> str:
    if not history.sessions:
        return "No process has written anything yet."
    last = history.sessions[-1]
    when = _when(last.last_time)
    if last.reason is None:
        return f"Running, or killed: last heard of on {when}, at step {last.last_step:,}."
    return f"Stopped on {when}, at step {last.last_step:,}: {text(last.reason)}."


def _facts(history: ReportData) -> str:
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


def _validation(history: ReportData) -> str:
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


def _time(history: ReportData) -> str:
    spent = {name: seconds for name, seconds in history.time_spent().items() if seconds >= 0.05}
    if not spent:
        return ""
    note = (
        "<p>Not running: between the last line that a process left and the start of the next. "
        "Work that a kill took and that was done again is part of it.</p>"
    )
    rows = _shares(spent, format_duration)
    return f"<h2>Where the time went</h2>{rows}{note if history.away_s >= 0.05 else ''}"


def _mixture(history: ReportData) -> str:
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


def _sessions(history: ReportData) -> str:
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


def _environment(history: ReportData) -> str:
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


def _configuration(sources: ReportSources) -> str:
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
