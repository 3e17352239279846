"""Charts are valid SVG, lose no peak, and accept any data."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ElementTree

import pytest

from stream_pretrain.audit.downsample import downsample
from stream_pretrain.audit.svg_chart import Marker, Series, line_chart, ticks

SVG = "{http://www.w3.org/2000/svg}"


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def lines(svg: str) -> list[ElementTree.Element]:
    paths = parse(svg).iter(f"{SVG}path")
    return [
        path
        for path in paths
        if path.get("class", "").startswith("line") and "L" in path.get("d", "")
    ]


def test_a_chart_shows_its_title_lines_keys_and_marks() -> None:
    svg = line_chart(
        [
            Series(name="a<b", points=[(0, 1.0), (5, 2.0), (10, 0.5)]),
            Series(name="validation", points=[(5, 1.5)], dots=True),
            Series(name="behind", points=[(0, 1.0), (10, 2.0)], background=True),
        ],
        "Loss & more",
        y_label="nats",
        markers=[Marker(x=2, label="epoch 1"), Marker(x=5, label="restart", kind="restart")],
    )
    text = "".join(parse(svg).itertext())
    for word in ("Loss & more", "a<b", "validation", "nats", "step", "epoch 1", "restart"):
        assert word in text
    assert "behind" not in text
    assert len(lines(svg)) == 2
    assert "http://www.w3.org/2000/svg" in svg
    assert svg.count("http") == 1


def test_a_million_points_stay_small_and_keep_their_peaks() -> None:
    chance = random.Random(1)
    points = [(float(n), chance.random()) for n in range(1_000_000)]
    points[123_456] = (123_456.0, 9.0)
    points[654_321] = (654_321.0, -9.0)
    kept = downsample(points, 0, 999_999, 800)
    assert len(kept) <= 4 * 801
    assert points[123_456] in kept
    assert points[654_321] in kept
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert kept == sorted(kept)
    assert len(line_chart([Series(name="x", points=points)], "t")) < 120_000


def test_values_that_are_not_finite_interrupt_the_line() -> None:
    points = [(0, 1.0), (1, 2.0), (2, math.nan), (3, 2.0), (4, math.inf), (5, 1.0)]
    (path,) = lines(line_chart([Series(name="x", points=points)], "t"))
    assert path.get("d", "").count("M") == 3
    assert "nan" not in path.get("d", "")


def test_one_bad_value_among_a_million_still_interrupts_the_line() -> None:
    points = [(float(n), 1.0) for n in range(100_000)]
    points[5000] = (5000.0, math.nan)
    assert any(math.isnan(y) for _, y in downsample(points, 0, 99_999, 100))


@pytest.mark.parametrize(
    "points",
    [[], [(1.0, math.nan)], [(3.0, 5.0)], [(0.0, 7.0), (9.0, 7.0)], [(0.0, 0.0), (1.0, 0.0)]],
)
@pytest.mark.parametrize("log_y", [False, True])
def test_little_data_is_no_error(points: list[tuple[float, float]], log_y: bool) -> None:
    svg = line_chart([Series(name="x", points=points)], "t", log_y=log_y)
    assert "nan" not in svg.split("</style>")[1]
    drawn = any(math.isfinite(y) and (y > 0 or not log_y) for _, y in points)
    assert ("no data" in svg) is not drawn


def test_a_single_point_is_a_dot() -> None:
    svg = line_chart([Series(name="x", points=[(3, 5.0)])], "t")
    assert len(list(parse(svg).iter(f"{SVG}circle"))) == 1


def test_a_logarithmic_axis_has_powers_of_ten() -> None:
    points = [(0, 0.01), (1, -1.0), (2, 1000.0)]
    svg = line_chart([Series(name="x", points=points)], "t", log_y=True)
    text = [element.text for element in parse(svg).iter(f"{SVG}text")]
    assert {"0.01", "1", "100"} <= set(text)


def test_a_chart_within_a_page_leaves_the_style_to_it() -> None:
    assert "<style>" not in line_chart([], "t", standalone=False)
    assert "prefers-color-scheme:dark" in line_chart([], "t")


def test_many_series_share_six_colors_and_wrap_their_keys() -> None:
    many = [Series(name=f"stream number {n}", points=[(0, n), (1, n)]) for n in range(9)]
    svg = line_chart(many, "t", size=(360, 240))
    assert "s5" in svg
    assert 'class="line s6' not in svg
    keys = [text for text in parse(svg).iter(f"{SVG}text") if text.get("class") == "key"]
    assert len(keys) == 9
    assert len({text.get("y") for text in keys}) > 2
    assert all(float(text.get("x", "0")) < 360 for text in keys)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.3, 0.9, [0.4, 0.6, 0.8]), (-3, 3, [-2, 0, 2])],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5 if high == 10 else 3) == pytest.approx(expected)


def test_a_chart_within_a_page_names_the_values_nearest_to_the_mouse() -> None:
    rising = Series(name="up", points=[(float(n), 2.0 * n) for n in range(101)])
    rare = Series(name="rare", points=[(50.0, 7.0)])
    svg = line_chart([rising, rare], "t", standalone=False)
    strips = list(parse(svg).iter(f"{SVG}rect"))
    assert len(strips) > 50
    assert "".join(strips[0].itertext()) == "step 0\nup: 0\nrare: 7"
    assert "<rect" not in line_chart([rising], "t")
