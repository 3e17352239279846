"""The learning rate is a function of the step alone, and never zero where an update is made."""

from __future__ import annotations

import itertools
import math

import pytest

from stream_pretrain.optim.schedule import Schedule

KINDS = ("cosine", "wsd", "linear", "inverse_sqrt", "constant")


def schedule(kind: str, **changes: object) -> Schedule:
    values: dict[str, object] = {
        "peak": 1e-3,
        "floor": 1e-4,
        "warmup_steps": 10,
        "total_steps": 100,
        "decay_steps": 20 if kind == "wsd" else None,
    }
    return Schedule(kind=kind, **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_rises_in_equal_parts_from_a_rate_above_zero(kind: str) -> None:
    rates = [schedule(kind).rate_at(step) for step in range(10)]
    assert rates == pytest.approx([1e-3 * (step + 1) / 10 for step in range(10)])


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_is_reached_and_nothing_is_above_it(kind: str) -> None:
    rates = [schedule(kind).rate_at(step) for step in range(200)]
    assert max(rates) == rates[9] == 1e-3
    assert min(rates) > 0


@pytest.mark.parametrize("kind", ["cosine", "wsd", "linear"])
def test_the_floor_is_reached_just_after_the_last_update_and_stays(kind: str) -> None:
    made = schedule(kind)
    assert made.rate_at(99) > 1e-4
    assert made.rate_at(100) == pytest.approx(1e-4)
    assert made.rate_at(10_000) == pytest.approx(1e-4)


def test_a_last_update_is_not_wasted_when_the_floor_is_zero() -> None:
    for kind in ("cosine", "wsd", "linear"):
        assert schedule(kind, floor=0.0).rate_at(99) > 0


def test_cosine_is_half_way_in_the_middle_of_its_decay() -> None:
    assert schedule("cosine").rate_at(55) == pytest.approx((1e-3 + 1e-4) / 2)


def test_linear_falls_by_the_same_amount_each_step() -> None:
    rates = [schedule("linear").rate_at(step) for step in range(10, 101)]
    falls = [a - b for a, b in itertools.pairwise(rates)]
    assert falls == pytest.approx([0.9e-3 / 90] * 90)


def test_wsd_is_constant_until_its_decay_begins() -> None:
    made = schedule("wsd")
    assert {made.rate_at(step) for step in range(10, 81)} == {1e-3}
    assert made.rate_at(90) == pytest.approx((1e-3 + 1e-4) / 2)


def test_a_wsd_decay_longer_than_the_run_begins_after_warm_up() -> None:
    made = schedule("wsd", decay_steps=1000)
    assert made.rate_at(10) == 1e-3
    assert made.rate_at(55) == pytest.approx((1e-3 + 1e-4) / 2)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_decay_length_ends_the_decay_before_the_run(kind: str) -> None:
    made = schedule(kind, decay_steps=40)
    assert made.rate_at(49) > 1e-4
    assert made.rate_at(50) == pytest.approx(1e-4)
    assert schedule(kind, decay_steps=40, total_steps=None).rate_at(30) == made.rate_at(30)


def test_inverse_square_root_halves_when_the_step_is_four_times_the_warm_up() -> None:
    made = schedule("inverse_sqrt", floor=0.0)
    assert made.rate_at(39) == pytest.approx(0.5e-3)
    assert schedule("inverse_sqrt").rate_at(10**9) == 1e-4


def test_constant_stays_at_the_peak() -> None:
    assert {schedule("constant", floor=0.0).rate_at(s) for s in range(9, 1000)} == {1e-3}


def test_without_warm_up_the_first_update_has_the_peak() -> None:
    for kind in KINDS:
        assert schedule(kind, warmup_steps=0).rate_at(0) == 1e-3


def test_a_run_that_is_all_warm_up_never_divides_by_zero() -> None:
    for kind in KINDS:
        assert math.isfinite(schedule(kind, warmup_steps=100).rate_at(100))


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_decay_needs_an_end(kind: str) -> None:
    with pytest.raises(ValueError, match=f"known for a {kind} schedule, got neither"):
        schedule(kind, total_steps=None)


@pytest.mark.parametrize("missing", ["total_steps", "decay_steps"])
def test_wsd_needs_both_lengths(missing: str) -> None:
    with pytest.raises(ValueError, match="must be known for a wsd schedule"):
        schedule("wsd", **{missing: None})


def test_a_floor_above_the_peak_is_refused() -> None:
    with pytest.raises(ValueError, match=r"floor must be in \[0, peak = 0.001\], got 0.01"):
        schedule("cosine", floor=0.01)
