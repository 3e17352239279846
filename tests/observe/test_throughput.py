"""Rates follow from the clock, the tokens and the time of waits, saves and evaluations."""

from __future__ import annotations

import pytest

from stream_pretrain.observe.throughput import Meter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rates_of_an_interval_leave_saves_and_evaluations_out_of_the_speed() -> None:
    clock = Clock()
    meter = Meter(flops_per_token=6.0, peak_flops=1200.0, clock=clock)
    for _ in range(4):
        with meter.during("data"):
            clock.now += 0.5
        clock.now += 1.5
        meter.advance(200)
    with meter.during("save"):
        clock.now += 1.0
    with meter.during("evaluation"):
        clock.now += 1.0
    rates = meter.end_interval()
    assert rates.seconds == pytest.approx(10.0)
    assert rates.tokens_per_second == pytest.approx(800 / 8)
    assert rates.data_wait == pytest.approx(2 / 8)
    assert rates.save_share == pytest.approx(0.1)
    assert rates.mfu == pytest.approx(100 * 6 / 1200)
    assert rates.per_step()["seconds"] == pytest.approx(2.0)
    assert meter.last == {"data": 0.5, "save": 1.0, "evaluation": 1.0}


def test_the_next_interval_starts_from_nothing() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    meter.advance(10)
    meter.add("data", 5.0)
    clock.now += 1
    meter.end_interval()
    clock.now += 1
    rates = meter.end_interval()
    assert (rates.steps, rates.tokens, rates.data_wait, rates.mfu) == (0, 0, 0.0, None)
    assert "mfu" not in rates.per_step()
    assert rates.per_step()["seconds"] == 0.0


def test_a_clock_that_stands_still_divides_by_no_zero() -> None:
    meter = Meter(clock=Clock())
    meter.advance(10)
    assert meter.end_interval().tokens_per_second > 0


def test_time_left_counts_saves_and_forgets_the_first_interval() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    assert meter.seconds_left(1000) is None
    clock.now += 60  # compilation
    meter.advance(100)
    meter.end_interval()
    assert meter.seconds_left(1000) is None
    for _ in range(3):
        clock.now += 1
        with meter.during("save"):
            clock.now += 1
        meter.advance(100)
        meter.end_interval()
    assert meter.seconds_left(1000) == pytest.approx(20)
    assert meter.seconds_left(-5) == 0
    assert meter.seconds_left(None) is None


def test_reset_forgets_the_time_before_the_first_step() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    clock.now += 50
    meter.reset()
    clock.now += 2
    meter.advance(10)
    assert meter.end_interval().tokens_per_second == pytest.approx(5)
