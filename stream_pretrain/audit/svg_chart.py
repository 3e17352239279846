"""Line charts as SVG text. In: named series of points, x ascending. Out: one `<svg>`. Does not
write files, needs no plotting library, loads nothing.

Colours follow the reader's light or dark setting. A chart fits any width; text keeps the size that
it has at `width` pixels, so make one for a phone as well. Long series are thinned by first, last,
least and greatest of every pixel column: no peak is lost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal

from stream_pretrain.audit.downsample import Point, thin
from stream_pretrain.units import format_count

_COLORS = 6

STYLE = """
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
_MARK_CLASS = {"epoch": "mark", "restart": "restart"}
_CHARACTER_PX = 6.7
_LABEL_GAP_PX = 64
_HINT_PX = 8


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line. A y that is not finite interrupts it. `dots` marks each point; `faint` is for a
    line behind another (it has no key), `dashed` for one on top of another. `color`: 0 to 5, by
    default its place among the series.
    """

    name: str
    points: Sequence[Point]
    color: int | None = None
    dots: bool = False
    faint: bool = False
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line at `x`: an epoch's beginning or a restart."""

    x: float
    label: str
    kind: Literal["epoch", "restart"] = "epoch"


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """Where the data lies: pixels of the plot, and the data's range."""

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
    marks: Sequence[Mark] = (),
    size: tuple[int, int] = (900, 300),
    log_y: bool = False,
    standalone: bool = True,
) -> str:
    """The chart as an `<svg>` element: `standalone` with its own style, to be saved as a file, or
    part of a page that has `STYLE`; there it names the values under the mouse.

    With `log_y`, values of zero and below interrupt the line.
    """
    width, height = size
    series = [_coloured(one, place) for place, one in enumerate(series)]
    keys = _legend(series, width)
    frame = _frame(series, size, log_y=log_y, legend_rows=keys[1])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>" if standalone else "",
        f'<text class="title" x="2" y="16">{escape(title)}</text>',
        keys[0],
    ]
    if frame is None:
        parts.append(f'<text x="{width / 2}" y="{height / 2}" text-anchor="middle">no data</text>')
    else:
        parts += [_axes(frame, size, x_label, y_label), _marks(frame, marks)]
        parts += [_line(frame, one) for one in series]
        parts += [_hints(frame, series, x_label)] if not standalone else []
    return "".join([*parts, "</svg>\n"])


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers within [low, high], about `count` of them: steps of 1, 2 or 5 times a power of
    ten.
    """
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _coloured(one: Series, place: int) -> Series:
    return replace(one, color=(place if one.color is None else one.color) % _COLORS)


def _frame(
    series: Sequence[Series], size: tuple[int, int], *, log_y: bool, legend_rows: int
) -> _Frame | None:
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
    return _Frame(
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


def _axes(frame: _Frame, size: tuple[int, int], x_label: str, y_label: str) -> str:
    parts = []
    for value in _y_ticks(frame):
        y = frame.y(value)
        parts.append(
            f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
        )
    for value in ticks(frame.x_from, frame.x_to, max(2, (size[0] - _LEFT) // 75)):
        place = f'x="{frame.x(value):.1f}" y="{frame.bottom + 16}"'
        parts.append(f'<text {place} text-anchor="middle">{_number(value)}</text>')
    middle = (frame.left + frame.right) / 2
    parts.append(
        f'<text x="{middle}" y="{size[1] - 4}" text-anchor="middle">{escape(x_label)}</text>'
    )
    if y_label:
        parts.append(
            f'<text x="{size[0] - _RIGHT}" y="16" text-anchor="end">{escape(y_label)}</text>'
        )
    return "".join(parts)


def _y_ticks(frame: _Frame) -> list[float]:
    if frame.log_y and frame.y_to / frame.y_from > 20:
        low, high = math.ceil(math.log10(frame.y_from)), math.floor(math.log10(frame.y_to))
        return [10.0**n for n in range(low, high + 1, max(1, (high - low) // 5))]
    return ticks(frame.y_from, frame.y_to, max(2, int(frame.bottom - frame.top) // 45))


def _marks(frame: _Frame, marks: Sequence[Mark]) -> str:
    parts = []
    labelled = -math.inf
    for mark in sorted(marks, key=lambda one: one.x):
        if not frame.x_from <= mark.x <= frame.x_to:
            continue
        x = frame.x(mark.x)
        label = escape(mark.label)
        parts.append(
            f'<line class="{_MARK_CLASS[mark.kind]}" x1="{x:.1f}" x2="{x:.1f}" '
            f'y1="{frame.top}" y2="{frame.bottom}"><title>{label}</title></line>'
        )
        if mark.kind == "restart":
            flag = f"M{x:.1f} {frame.bottom - 7}l-4.5 7h9z"
            parts.append(f'<path class="flag" d="{flag}"><title>{label}</title></path>')
        elif x - labelled >= _LABEL_GAP_PX and x + _LABEL_GAP_PX <= frame.right:
            labelled = x
            parts.append(f'<text x="{x + 4:.1f}" y="{frame.top + 10}">{label}</text>')
    return "".join(parts)


def _line(frame: _Frame, one: Series) -> str:
    points = thin(one.points, frame.x_from, frame.x_to, int(frame.right - frame.left))
    commands: list[str] = []
    dots: list[str] = []
    pen_down = False
    for place, (x, y) in enumerate(points):
        if not math.isfinite(y) or (frame.log_y and y <= 0):
            pen_down = False
            continue
        at = f"{frame.x(x):.1f} {frame.y(y):.1f}"
        commands.append(f"{'L' if pen_down else 'M'}{at}")
        after = points[place + 1][1] if place + 1 < len(points) else math.nan
        if one.dots or not (pen_down or math.isfinite(after)):
            dots.append(_dot(one, (x, y), at))
        pen_down = True
    look = f"line s{one.color}" + " faint" * one.faint + " dashed" * one.dashed
    return f'<path class="{look}" d="{"".join(commands)}"/>' + "".join(dots)


def _dot(one: Series, point: Point, at: str) -> str:
    x, y = at.split()
    what = escape(f"{one.name}: {point[1]:.5g} at {point[0]:,.0f}")
    return f'<circle class="d{one.color}" cx="{x}" cy="{y}" r="3"><title>{what}</title></circle>'


def _hints(frame: _Frame, series: Sequence[Series], x_label: str) -> str:
    """Strips that nobody sees until the mouse is over one: they name the values nearest to it."""
    shown = [(one, [x for x, _ in one.points]) for one in series if one.points and not one.faint]
    parts = []
    for place in range(int(frame.right - frame.left) // _HINT_PX):
        left = frame.left + place * _HINT_PX
        share = (left + _HINT_PX / 2 - frame.left) / (frame.right - frame.left)
        at = frame.x_from + share * (frame.x_to - frame.x_from)
        lines = [f"{x_label} {at:,.0f}"]
        for one, xs in shown:
            after = min(bisect_left(xs, at), len(xs) - 1)
            nearest = min((max(0, after - 1), after), key=lambda n: abs(xs[n] - at))
            lines.append(f"{one.name}: {one.points[nearest][1]:.5g}")
        strip = f'x="{left:.0f}" y="{frame.top}" width="{_HINT_PX}"'
        said = f"<title>{escape(chr(10).join(lines))}</title>"
        tall = f'height="{frame.bottom - frame.top}"'
        parts.append(f'<rect class="hint" {strip} {tall}>{said}</rect>')
    return "".join(parts)


def _legend(series: Sequence[Series], width: int) -> tuple[str, int]:
    """The keys under the title, and how many rows they take."""
    named = [one for one in series if not one.faint]
    if len(named) < 2:
        return "", 0
    parts, x, row = [], 2.0, 1
    for one in named:
        needs = 24 + len(one.name) * _CHARACTER_PX
        if x + needs > width and x > 2:
            x, row = 2.0, row + 1
        y = _TITLE + row * _ROW - 8
        dashed = " dashed" * one.dashed
        parts.append(
            f'<path class="line s{one.color}{dashed}" d="M{x} {y - 4}h14"/>'
            f'<text class="key" x="{x + 19}" y="{y}">{escape(one.name)}</text>'
        )
        x += needs + 10
    return "".join(parts), row


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return format_count(value)
    return f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.0e}".replace("e-0", "e-")
