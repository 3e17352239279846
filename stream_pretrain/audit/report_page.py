"""Build the HTML page of a report.

What goes in is the `ReportData` of a run and its configuration as text; what comes out is one HTML
text that loads nothing, in light and dark, for narrow and wide screens. Every text of the run
passes through `safe_text`, which hides secrets and escapes HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from typing import Any

from stream_pretrain.audit.report_charts import charts
from stream_pretrain.audit.report_data import ReportData, Session
from stream_pretrain.audit.svg_chart import CHART_STYLE
from stream_pretrain.redaction import redact
from stream_pretrain.units import format_count, format_duration

_BAR_COLORS = 8

PAGE_STYLE = """
:root{color-scheme:light dark;--ink:#1f2430;--soft:#667085;--paper:#fff;
--card:#f7f8fa;--edge:#e4e7ec}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#98a2b3;--paper:#14171d;
--card:#1c2028;--edge:#2b303b}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1064px;padding:24px 16px 64px;background:var(--paper);
color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0;overflow-wrap:anywhere}h2{font-size:17px;margin:36px 0 10px}
p{margin:4px 0;color:var(--soft);overflow-wrap:anywhere}a{color:inherit}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:8px;
margin:18px 0}
.facts div{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:8px 12px;
min-width:0}
.facts dt{color:var(--soft);font-size:12px}.facts dd{margin:0;font-weight:600;
overflow-wrap:anywhere}
.chart{width:100%;height:auto;display:block;margin:14px 0}.narrow{display:none}
@media (max-width:640px){.narrow{display:block}.wide{display:none}}
.facts div:last-child{grid-column:span 2}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--edge);
vertical-align:top}
th{color:var(--soft);font-weight:500}td.n,th.n{text-align:right}
td{white-space:nowrap}td.long{white-space:normal;overflow-wrap:anywhere;min-width:10em}
.bar{display:flex;height:22px;border-radius:6px;overflow:hidden;background:var(--edge);
margin:10px 0}
.swatch{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px}
pre{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:12px;
overflow-x:auto;
font-size:12.5px}
.b0{background:#2563eb}.b1{background:#ea580c}.b2{background:#059669}.b3{background:#db2777}
.b4{background:#98a2b3}.b5{background:#7c3aed}.b6{background:#0891b2}.b7{background:#ca8a04}
"""


@dataclass(frozen=True, kw_only=True)
class ReportSources:
    """The location of a run, its configuration as text, and the files that the page links to."""

    location: str
    config: str = ""
    links: tuple[str, ...] = ()


def page(data: ReportData, sources: ReportSources) -> str:
    """Return the whole page."""
    name = sources.location.rstrip("/").rpartition("/")[2] or sources.location
    parts = [
        f"<h1>{safe_text(name)}</h1><p>{safe_text(sources.location)}</p><p>{_status(data)}</p>",
        _facts(data),
        *charts(data),
        _validation_section(data),
        _time_section(data),
        _mixture_section(data),
        _sessions_section(data),
        _environment_section(data),
        _configuration_section(sources),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{safe_text(name)}: training report</title>"
        f"<style>{PAGE_STYLE}{CHART_STYLE}</style></head>\n<body>\n{''.join(parts)}</body></html>\n"
    )


def safe_text(value: Any) -> str:
    """Return a value as HTML text, without secrets and escaped."""
    return escape(redact(str(value)))


def _status(data: ReportData) -> str:
    if not data.sessions:
        return "No process has written anything yet."
    last = data.sessions[-1]
    when = _utc_time(last.last_time)
    if last.reason is None:
        return f"Running, or killed: last event on {when}, at step {last.last_step:,}."
    return f"Stopped on {when}, at step {last.last_step:,}: {safe_text(last.reason)}."


def _facts(data: ReportData) -> str:
    last = data.last
    if last is None:
        return ""
    sets = list(data.evaluations.items())
    facts = {
        "step": f"{last['step']:,}",
        "tokens": format_count(last["tokens"]),
        "loss": _number(last["loss"]),
        **{f"{name} loss": _number(results[-1][1].get("loss")) for name, results in sets[:2]},
        "epoch": str(last["epoch"]),
        "tokens/s": format_count(_median(data.columns["tokens_per_second"])),
    }
    if not math.isnan(mfu := _median(data.columns["mfu"])):
        facts["MFU"] = f"{100 * mfu:.1f} %"
    facts |= {
        "time": format_duration(data.total_s),
        "restarts": str(len(data.sessions) - 1),
        "saves": str(data.saves),
    }
    if data.skipped:
        facts["skipped updates"] = f"{data.skipped:,}"
    facts["data digest"] = str(last["digest"])
    cells = "".join(
        f"<div><dt>{safe_text(k)}</dt><dd>{safe_text(v)}</dd></div>" for k, v in facts.items()
    )
    return f'<dl class="facts">{cells}</dl>'


def _validation_section(data: ReportData) -> str:
    if not data.evaluations:
        return ""
    rows = []
    for name, results in data.evaluations.items():
        step, last = results[-1]
        best_step, best = min(results, key=_loss_of)
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


def _time_section(data: ReportData) -> str:
    time_spent = {name: seconds for name, seconds in data.time_spent().items() if seconds >= 0.05}
    if not time_spent:
        return ""
    note = (
        "<p>Not running: from the last event of a process to the start of the next one. This "
        "includes work that was lost in a kill and repeated.</p>"
    )
    rows = _shares(time_spent, format_duration)
    return f"<h2>Where the time went</h2>{rows}{note if data.downtime_s >= 0.05 else ''}"


def _mixture_section(data: ReportData) -> str:
    if not data.stream_tokens:
        return ""
    return "<h2>Data mixture</h2>" + _shares(data.stream_tokens, format_count, "tokens")


def _shares(
    amounts: Mapping[str, float], format_amount: Callable[[float], str], unit: str = "time"
) -> str:
    """Return a stacked bar of the amounts, and a table with their names and shares."""
    total = sum(amounts.values()) or 1.0
    parts, rows = [], []
    for i, (name, amount) in enumerate(amounts.items()):
        color = f"b{i % _BAR_COLORS}"
        share = 100 * amount / total
        parts.append(f'<span class="{color}" style="width:{share:.3f}%"></span>')
        key = f'<td><span class="swatch {color}"></span>{safe_text(name)}</td>'
        numbers = f'<td class="n">{format_amount(amount)}</td><td class="n">{share:.1f} %</td>'
        rows.append(f"<tr>{key}{numbers}</tr>")
    head = f'<tr><th></th><th class="n">{unit}</th><th class="n">share</th></tr>'
    bar = f'<div class="bar">{"".join(parts)}</div>'
    return f'{bar}<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _sessions_section(data: ReportData) -> str:
    if not data.sessions:
        return ""
    rows = []
    for session, following in zip(data.sessions, [*data.sessions[1:], None], strict=True):
        rows.append(
            [
                session.kind,
                _utc_time(session.started),
                f"{session.step:,} to {session.last_step:,}",
                format_duration(session.last_time - session.started),
                _end_reason(session, following),
            ]
        )
    head = ["", "from (UTC)", "steps", "time", "ended by"]
    note = (
        "<p>Steps that were lost in a kill are not counted for the process that did them first.</p>"
    )
    return "<h2>Starts and stops</h2>" + _table(head, rows) + note


def _end_reason(session: Session, following: Session | None) -> str:
    if session.reason is not None:
        return session.reason
    return "killed" if following is not None else "still running, or killed"


def _environment_section(data: ReportData) -> str:
    if not data.sessions:
        return ""
    rows = [[name, value] for name, value in _flatten(data.sessions[-1].facts)]
    if not rows:
        return ""
    return "<h2>Environment</h2>" + _table(["of the last start", ""], rows)


def _flatten(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            flat += _flatten(value, f"{prefix}{name} ")
        else:
            flat.append((f"{prefix}{name}", str(value)))
    return flat


def _configuration_section(sources: ReportSources) -> str:
    if not sources.config and not sources.links:
        return ""
    links = " · ".join(f'<a href="{escape(name)}">{safe_text(name)}</a>' for name in sources.links)
    details = ""
    if sources.config:
        content = f"<summary>the configuration</summary><pre>{safe_text(sources.config)}</pre>"
        details = f"<details>{content}</details>"
    return f"<h2>Configuration</h2><p>{links}</p>{details}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head_cells = "".join(f"<th>{safe_text(cell)}</th>" for cell in head)
    body = ""
    for row in rows:
        cells = [f"<td>{safe_text(cell)}</td>" for cell in row[:-1]]
        body += f'<tr>{"".join(cells)}<td class="long">{safe_text(row[-1])}</td></tr>'
    return f'<div class="scroll"><table><tr>{head_cells}</tr>{body}</table></div>'


def _utc_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    return "not given" if value is None else f"{value:.4g}" if abs(value) < 1e6 else f"{value:.2e}"


def _median(values: Sequence[float]) -> float:
    finite = sorted(value for value in values if math.isfinite(value))
    return finite[len(finite) // 2] if finite else math.nan
