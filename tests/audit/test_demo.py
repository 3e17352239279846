"""`demo` and `selftest`: real processes, really killed, compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small import fit_arguments

from stream_pretrain.audit import subprocess_runs
from stream_pretrain.audit.compare_runs import FinalState, differences
from stream_pretrain.audit.demo import corpus
from stream_pretrain.audit.selftest import draw_kill_steps
from stream_pretrain.cli import main
from stream_pretrain.errors import TrainingError


def test_the_corpus_is_the_same_every_time_and_all_text() -> None:
    first, second = list(corpus()), list(corpus())
    assert first == second
    assert len({name for name, _ in first}) == len(first) > 10
    assert 300_000 < sum(len(text) for _, text in first) <= 500_000


def final_state(**changes: object) -> FinalState:
    values = {"step": 2, "digest": "a" * 16, "weights": "b" * 32, "losses": {1: 2.0, 2: 1.0}}
    return FinalState(**{**values, **changes})  # type: ignore[arg-type]


def test_equal_final_states_do_not_differ() -> None:
    assert differences(final_state(), final_state()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"digest": "c" * 16}, "data digest: aaaaaaaaaaaaaaaa and cccccccccccccccc"),
        ({"weights": "d" * 32}, "weights: "),
        ({"losses": {1: 2.0, 2: 1.0000001}}, "loss differs at 1 steps, first at 2"),
        ({"step": 3}, "step: 2 and 3"),
    ],
)
def test_every_difference_is_reported(changes: dict[str, object], expected: str) -> None:
    [line] = differences(final_state(), final_state(**changes))
    assert line.startswith(expected)


def test_kills_are_drawn_from_the_seed_and_spare_the_last_step() -> None:
    assert draw_kill_steps(20, 3, seed=1) == draw_kill_steps(20, 3, seed=1)
    assert len(draw_kill_steps(20, 3, seed=1)) == 3
    assert draw_kill_steps(2, 5, seed=1) == [1]


def test_a_child_that_fails_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="exited with code 2"):
        subprocess_runs.run_command(subprocess_runs.CONVERT, ["nonsense"], tmp_path / "log")
    with pytest.raises(TrainingError, match="before it could be killed"):
        subprocess_runs.run_and_kill(
            subprocess_runs.CONVERT, ["--help"], tmp_path / "log", lambda: False
        )


def test_a_directory_that_holds_something_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.slow
def test_selftest_compares_a_killed_run_with_a_whole_one(dataset: Path, tmp_path: Path) -> None:
    arguments = fit_arguments(dataset, tmp_path / "unused")[1:]
    command = [sys.executable, "-m", "stream_pretrain.cli", "selftest", *arguments]
    options = ["--steps", "20", "--kills", "1", "--json", "true", "--out", str(tmp_path / "kept")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["same"] is True
    assert len(result["killed_after"]) == 1
    assert (tmp_path / "kept" / "interrupted" / "metrics.jsonl").exists()
