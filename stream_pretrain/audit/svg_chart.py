"""Draw line charts as SVG text, without a plotting library.

A chart is made of named series of points with ascending x, and is one `<svg>` element that loads
nothing. Its colors follow the reader's light or dark setting. It scales to any width, and its text
scales with it, so that a narrow screen needs a chart of its own. Long series are downsampled to
each pixel column without losing a peak.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal

from stream_pretrain.audit.downsample import Point, downsample
from stream_pretrain.units import format_count

_COLORS = 6

CHART_STYLE = """
.chart{--ink:#1f2430;--soft:#667085;--grid:#e4e7ec;--mark:#98a2b3;--flag:#b42318;--c0:#2563eb;--c1:#c2410c;
--c2:#047857;--c3:#be185d;--c4:#7c3aed;--c5:#475467;font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.chart{--ink:#e6e9ef;--soft:#98a2b3;--grid:#2b303b;
--mark:#667085;--flag:#f97066;--c0:#6ea8fe;--c1:#fdba74;--c2:#4ade80;--c3:#f9a8d4;--c4:#c4b5fd;--c5:#cbd5e1}}
.chart text{fill:var(--soft)}.chart .title{fill:var(--ink);font-size:14px;font-weight:600}
.chart .key{fill:var(--ink)}.chart .grid{stroke:var(--grid)}.chart .line{fill:none;stroke-width:1.6;
stroke-linejoin:round}.chart .faint{opacity:.35;stroke-width:1}
.chart .dashed{stroke-dasharray:6 4}
.chart .mark{stroke:var(--mark);stroke-dasharray:3 3}.chart .restart{stroke:var(--flag);
stroke-dasharray:1 3}.chart .flag{fill:var(--flag)}
.chart .hint{fill:transparent}.chart .hint:hover{fill:var(--ink);opacity:.08}
""" + "".join(
    f".chart .s{n}{{stroke:var(--c{n})}}.chart .d{n}{{fill:var(--c{n})}}\n" for n in range(_COLORS)
)

_LEFT, _RIGHT, _BOTTOM = 54, 12, 36
_TITLE, _ROW = 26, 18
_MARKER_CLASS = {"epoch": "mark", "restart": "restart"}
_CHARACTER_PX = 6.7
_LABEL_GAP_PX = 64
_TOOLTIP_PX = 8


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart. A y that is not finite interrupts the line.

    `color` is a number from 0 to 5, by default the index of the series. `dots` marks each point.
    `background` draws a faint line without a legend entry, for raw values behind their mean.
    `dashed` is for a line on top of another.
    """

    name: str
    points: Sequence[Point]
    color: int | None = None
    dots: bool = False
    background: bool = False
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A vertical line at `x` for the beginning of an epoch or a restart."""

    x: float
    label: str
    kind: Literal["epoch", "restart"] = "epoch"


@dataclass(frozen=True, kw_only=True)
class _PlotArea:
    """The area of the plot in pixels, and the range of the data."""

    left: float
    top: float
    right: float
    bottom: float
    x_from: float
    x_to: float
    y_from: float
    y_to: float
    log_y: bool

    def x(self, value: float) -> float:
        share = (value - self.x_from) / (self.x_to - self.x_from)
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high, value = (
            (math.log10(self.y_from), math.log10(self.y_to), math.log10(value))
            if self.log_y
            else (self.y_from, self.y_to, value)
        )
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)


def line_chart(
    series: Sequence[Series],
    title: str,
    *,
    x_label: str = "step",
    y_label: str = "",
    markers: Sequence[Marker] = (),
    size: tuple[int, int] = (900, 300),
    log_y: bool = False,
    standalone: bool = True,
) -> str:
    """Return the chart as an `<svg>` element.

    A `standalone` chart has its own style and can be saved as a file. Otherwise it is part of a
    page that has `CHART_STYLE`, and has tooltips with the values under the mouse. With `log_y`,
    values of zero and below interrupt the line.
    """
    width, height = size
    series = [_with_color(one, index) for index, one in enumerate(series)]
    legend, legend_rows = _legend(series, width)
    area = _plot_area(series, size, log_y=log_y, legend_rows=legend_rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>{CHART_STYLE}</style>" if standalone else "",
        f'<text class="title" x="2" y="16">{escape(title)}</text>',
        legend,
    ]
    if area is None:
        parts.append(f'<text x="{width / 2}" y="{height / 2}" text-anchor="middle">no data</text>')
    else:
        parts += [_axes(area, size, x_label, y_label), _markers(area, markers)]
        parts += [_line(area, one) for one in series]
        parts += [_tooltips(area, series, x_label)] if not standalone else []
    return "".join([*parts, "</svg>\n"])


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers in [low, high]: multiples of 1, 2 or 5 powers of ten."""
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _with_color(one: Series, index: int) -> Series:
    return replace(one, color=(index if one.color is None else one.color) % _COLORS)


def _plot_area(
    series: Sequence[Series], size: tuple[int, int], *, log_y: bool, legend_rows: int
) -> _PlotArea | None:
    x_from = y_from = math.inf
    x_to = y_to = -math.inf
    for one in series:
        for x, y in one.points:
            if math.isfinite(y) and (y > 0 or not log_y):
                x_from, x_to = min(x_from, x), max(x_to, x)
                y_from, y_to = min(y_from, y), max(y_to, y)
    if x_from > x_to:
        return None
    if x_from == x_to:
        x_from, x_to = x_from - 0.5, x_to + 0.5
    if log_y:
        y_from, y_to = y_from / 1.1, y_to * 1.1
    else:
        pad = (y_to - y_from) * 0.06 or abs(y_to) * 0.1 or 1.0
        y_from = 0.0 if 0 <= y_from <= pad else y_from - pad
        y_to += pad
    return _PlotArea(
        left=_LEFT,
        top=_TITLE + legend_rows * _ROW + 6,
        right=size[0] - _RIGHT,
        bottom=size[1] - _BOTTOM,
        x_from=x_from,
        x_to=x_to,
        y_from=y_from,
        y_to=y_to,
        log_y=log_y,
    )


def _axes(area: _PlotArea, size: tuple[int, int], x_label: str, y_label: str) -> str:
    parts = []
    for value in _y_ticks(area):
        y = area.y(value)
        parts.append(
            f'<line class="grid" x1="{area.left}" x2="{area.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{area.left - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
        )
    for value in ticks(area.x_from, area.x_to, max(2, (size[0] - _LEFT) // 75)):
        position = f'x="{area.x(value):.1f}" y="{area.bottom + 16}"'
        parts.append(f'<text {position} text-anchor="middle">{_number(value)}</text>')
    middle = (area.left + area.right) / 2
    parts.append(
        f'<text x="{middle}" y="{size[1] - 4}" text-anchor="middle">{escape(x_label)}</text>'
    )
    if y_label:
        parts.append(
            f'<text x="{size[0] - _RIGHT}" y="16" text-anchor="end">{escape(y_label)}</text>'
        )
    return "".join(parts)


def _y_ticks(area: _PlotArea) -> list[float]:
    if area.log_y and area.y_to / area.y_from > 20:
        low, high = math.ceil(math.log10(area.y_from)), math.floor(math.log10(area.y_to))
        return [10.0**n for n in range(low, high + 1, max(1, (high - low) // 5))]
    return ticks(area.y_from, area.y_to, max(2, int(area.bottom - area.top) // 45))


def _markers(area: _PlotArea, markers: Sequence[Marker]) -> str:
    parts = []
    last_label_x = -math.inf
    for marker in sorted(markers, key=lambda one: one.x):
        if not area.x_from <= marker.x <= area.x_to:
            continue
        x = area.x(marker.x)
        label = escape(marker.label)
        parts.append(
            f'<line class="{_MARKER_CLASS[marker.kind]}" x1="{x:.1f}" x2="{x:.1f}" '
            f'y1="{area.top}" y2="{area.bottom}"><title>{label}</title></line>'
        )
        if marker.kind == "restart":
            flag = f"M{x:.1f} {area.bottom - 7}l-4.5 7h9z"
            parts.append(f'<path class="flag" d="{flag}"><title>{label}</title></path>')
        elif x - last_label_x >= _LABEL_GAP_PX and x + _LABEL_GAP_PX <= area.right:
            last_label_x = x
            parts.append(f'<text x="{x + 4:.1f}" y="{area.top + 10}">{label}</text>')
    return "".join(parts)


def _line(area: _PlotArea, one: Series) -> str:
    points = downsample(one.points, area.x_from, area.x_to, int(area.right - area.left))
    commands: list[str] = []
    dots: list[str] = []
    pen_down = False
    for i, (x, y) in enumerate(points):
        if not math.isfinite(y) or (area.log_y and y <= 0):
            pen_down = False
            continue
        position = f"{area.x(x):.1f} {area.y(y):.1f}"
        commands.append(f"{'L' if pen_down else 'M'}{position}")
        next_y = points[i + 1][1] if i + 1 < len(points) else math.nan
        if one.dots or not (pen_down or math.isfinite(next_y)):
            dots.append(_dot(one, (x, y), position))
        pen_down = True
    css = f"line s{one.color}" + " faint" * one.background + " dashed" * one.dashed
    return f'<path class="{css}" d="{"".join(commands)}"/>' + "".join(dots)


def _dot(one: Series, point: Point, position: str) -> str:
    x, y = position.split()
    label = escape(f"{one.name}: {point[1]:.5g} at {point[0]:,.0f}")
    return f'<circle class="d{one.color}" cx="{x}" cy="{y}" r="3"><title>{label}</title></circle>'


def _tooltips(area: _PlotArea, series: Sequence[Series], x_label: str) -> str:
    """Return transparent strips; each has a tooltip with the values nearest to it."""
    shown = [
        (one, [x for x, _ in one.points]) for one in series if one.points and not one.background
    ]
    parts = []
    for i in range(int(area.right - area.left) // _TOOLTIP_PX):
        left = area.left + i * _TOOLTIP_PX
        share = (left + _TOOLTIP_PX / 2 - area.left) / (area.right - area.left)
        x = area.x_from + share * (area.x_to - area.x_from)
        lines = [f"{x_label} {x:,.0f}"]
        for one, xs in shown:
            right = min(bisect_left(xs, x), len(xs) - 1)
            nearest = min((max(0, right - 1), right), key=lambda n: abs(xs[n] - x))
            lines.append(f"{one.name}: {one.points[nearest][1]:.5g}")
        strip = f'x="{left:.0f}" y="{area.top}" width="{_TOOLTIP_PX}"'
        title = f"<title>{escape(chr(10).join(lines))}</title>"
        height = f'height="{area.bottom - area.top}"'
        parts.append(f'<rect class="hint" {strip} {height}>{title}</rect>')
    return "".join(parts)


def _legend(series: Sequence[Series], width: int) -> tuple[str, int]:
    """Return the legend under the title, and its number of rows."""
    named = [one for one in series if not one.background]
    if len(named) < 2:
        return "", 0
    parts, x, row = [], 2.0, 1
    for one in named:
        entry_px = 24 + len(one.name) * _CHARACTER_PX
        if x + entry_px > width and x > 2:
            x, row = 2.0, row + 1
        y = _TITLE + row * _ROW - 8
        dashed = " dashed" * one.dashed
        parts.append(
            f'<path class="line s{one.color}{dashed}" d="M{x} {y - 4}h14"/>'
            f'<text class="key" x="{x + 19}" y="{y}">{escape(one.name)}</text>'
        )
        x += entry_px + 10
    return "".join(parts), row


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return format_count(value)
    return f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.0e}".replace("e-0", "e-")
