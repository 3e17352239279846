"""CSV and TensorBoard through real runs: killed at any instant, every step once, with the numbers
of a run that never stopped."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from forked_runs import ForkedRuns, Kill
from options import Short
from runs import assert_same, evaluations, steps
from test_loggers import tensorboard_points

LOGGED: dict[str, object] = {
    "logging__loggers": ["csv", "tensorboard"],
    "stop__max_steps": 17,
    "evaluation__every": 7,
    "checkpoint__every": 5,
    "logging__every": 4,
}
REPEATED = ("loss", "lr", "grad_norm", "epoch", "sample_in_epoch", "tokens")


@pytest.fixture(scope="module")
def short(
    forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Short:
    return Short(forked_runs, dataset, tmp_path_factory.mktemp("loggers"))


@pytest.fixture(scope="module")
def whole(short: Short) -> Path:
    return short("whole", **LOGGED)


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "logs" / "csv" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def repeated_columns(run: Path) -> list[dict[str, str]]:
    """What a resume must repeat of each row: times and speeds are left out."""
    wanted = {f"train/{name}" for name in REPEATED} | {"validation/tiny/loss", "step"}
    return [{name: row.get(name, "") for name in sorted(wanted)} for row in rows(run)]


def assert_every_step_once(run: Path, whole: Path) -> None:
    assert_same(run, whole)
    assert [int(row["step"]) for row in rows(run)] == list(range(1, 18))
    assert repeated_columns(run) == repeated_columns(whole)
    for name in REPEATED:
        points = tensorboard_points(run, f"train/{name}")
        assert [step for step, _ in points] == list(range(1, 18)), name
        assert points == tensorboard_points(whole, f"train/{name}")
    assert tensorboard_points(run, "validation/tiny/loss") == tensorboard_points(
        whole, "validation/tiny/loss"
    )


def test_loggers_hold_what_the_metrics_hold(whole: Path) -> None:
    assert_every_step_once(whole, whole)
    by_step: dict[int, dict[str, Any]] = steps(whole)
    for row in rows(whole):
        numbers = by_step[int(row["step"])]
        assert float(row["train/loss"]) == numbers["loss"]
        assert float(row["train/lr"]) == numbers["lr"]
        assert float(row["train/grad_norm"]) == numbers["grad_norm"]
    evaluated = {int(r["step"]): r["validation/tiny/loss"] for r in rows(whole)}
    assert {s: float(v) for s, v in evaluated.items() if v} == dict(evaluations(whole))


KILLS = {
    "between two saves": [Kill("updated", 8)],
    "in a save": [Kill("fsync", 9)],
    "just after a save": [Kill("saved", 1)],
    "again and again": [Kill("counted", 4), Kill("taken", 7), Kill("fsync", 4), Kill("updated", 3)],
}


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(kills, id=name, marks=pytest.mark.slow if len(kills) == 1 else ())
        for name, kills in KILLS.items()
    ],
)
def test_every_step_once_after_kills(
    kills: list[Kill], short: Short, whole: Path, tmp_path: Path
) -> None:
    own = Short(short.forked_runs, short.dataset, tmp_path)
    arguments = own.arguments("run", **LOGGED)
    for kill in kills:
        assert own.forked_runs.run(arguments, tmp_path / "log", kill=kill).code == -9
    assert_every_step_once(own("run", **LOGGED), whole)


@pytest.mark.slow
def test_every_step_once_with_two_ranks(short: Short, tmp_path: Path) -> None:
    own = Short(short.forked_runs, short.dataset, tmp_path)
    unbroken = own("whole", ranks=2, **LOGGED)
    arguments = own.arguments("run", ranks=2, **LOGGED)
    for kill in (Kill("updated", 8), Kill("counted", 6, rank=1)):
        own.forked_runs.run(arguments, tmp_path / "log", ranks=2, kill=kill)
    assert_every_step_once(own("run", ranks=2, **LOGGED), unbroken)


def test_a_logger_that_is_added_at_a_resume_gets_every_step(
    short: Short, whole: Path, tmp_path: Path
) -> None:
    own = Short(short.forked_runs, short.dataset, tmp_path)
    plain = own.arguments("run", **{**LOGGED, "logging__loggers": []})
    assert own.forked_runs.run(plain, tmp_path / "log", kill=Kill("updated", 8)).code == -9
    assert_every_step_once(own("run", **LOGGED), whole)
