"""A loss that spikes: stop, leave the update out, or go back and leave the data out, the same after
any kill.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from forked_runs import ForkedRuns, Kill
from runs import end_of, steps
from small import fit_arguments

from stream_pretrain.train.loss_spikes import SpikeDetector, spike_limit

# A sigma this small makes an ordinary wobble of the loss a spike.
EAGER = {
    "optimizer__spike_sigma": 0.3,
    "optimizer__spike_window": 4,
    "schedule__kind": "constant",
    "stop__max_epochs": 2,
}


def state_of(run: Path, step: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        (run / "checkpoints" / f"step-{step:08d}" / "state.json").read_text()
    )
    return found


def test_nothing_is_a_spike_before_half_a_window() -> None:
    assert spike_limit([1.0, 1.0, 1.0], sigma=3, window=8) == math.inf
    assert spike_limit([1.0, 1.0, 1.0, 1.0], sigma=3, window=8) == pytest.approx(1.03)


def test_a_spike_does_not_enter_the_statistics() -> None:
    record: dict[str, object] = {}
    rule = SpikeDetector(sigma=3, window=4, record=record)
    assert [rule.judge(loss) for loss in (1.0, 1.0, 9.0, math.nan, None, 1.0)] == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]
    assert record["losses"] == [1.0, 1.0, 1.0]


def test_stop_ends_the_run_and_saves_nothing_after_the_spike(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", **EAGER, optimizer__on_spike="stop")
    done = forked_runs.run(arguments, tmp_path / "log")
    assert done.code == 1
    assert "the loss spikes" in done.log
    spiked = max(steps(tmp_path / "run"))
    assert end_of(tmp_path / "run").step < spiked


def test_skip_leaves_the_update_out_and_counts_on(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", **EAGER, optimizer__on_spike="skip")
    done = forked_runs.run(arguments, tmp_path / "log")
    assert done.code == 0, done.log
    assert "update left out" in done.log
    assert end_of(tmp_path / "run").step == 30


@pytest.fixture(scope="module")
def rewound(
    forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run that went back at least once."""
    root = tmp_path_factory.mktemp("rewound")
    arguments = fit_arguments(dataset, root / "run", **EAGER, optimizer__on_spike="rewind")
    done = forked_runs.run(arguments, root / "log")
    assert done.code == 0, done.log
    assert "is left out" in done.log
    return root / "run"


def test_rewind_leaves_the_data_out_and_records_it(rewound: Path) -> None:
    state = state_of(rewound, 30)
    skipped = [n for first, last in state["skipped"] for n in range(first, last + 1)]  # type: ignore
    assert skipped
    assert state["data_step"] == 30 + len(skipped)
    numbers = steps(rewound)
    assert sorted(numbers) == list(range(1, 31))
    trained = {step["data_step"] for step in numbers.values()}
    assert not trained & set(skipped)


def test_the_data_of_a_run_that_went_back_can_be_replayed(
    forked_runs: ForkedRuns, rewound: Path, tmp_path: Path
) -> None:
    done = forked_runs.run(["replay", str(rewound)], tmp_path / "log")
    assert done.code == 0, done.log


@pytest.mark.parametrize("kill", [Kill("counted", 12), Kill("saved", 2), Kill("counted", 27)])
def test_a_run_that_goes_back_and_is_killed_ends_as_if_never_killed(
    kill: Kill, forked_runs: ForkedRuns, dataset: Path, rewound: Path, tmp_path: Path
) -> None:
    changes = {**EAGER, "checkpoint__every": 4, "logging__every": 3}
    arguments = fit_arguments(dataset, tmp_path / "run", **changes, optimizer__on_spike="rewind")
    forked_runs.run(arguments, tmp_path / "log", kill=kill)
    done = forked_runs.run(arguments, tmp_path / "log")
    assert done.code == 0, done.log
    assert steps(tmp_path / "run") == steps(rewound)
    assert end_of(tmp_path / "run").weights == end_of(rewound).weights
