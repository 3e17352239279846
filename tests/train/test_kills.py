"""Promise 1: killed by SIGKILL at any instant, any number of times, a run ends as if nothing had
happened.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from forked_runs import ForkedRuns, Kill
from runs import assert_same, end_of, recorded, steps
from small import STEPS_PER_EPOCH, TOTAL_STEPS, fit_arguments

from stream_pretrain.data.sample_order.epoch_order import epoch_steps
from stream_pretrain.mds.index import read_index
from stream_pretrain.observe.jsonl import read_events
from stream_pretrain.order import Order
from stream_pretrain.storage.store import open_store

KILLED = -9


@pytest.fixture(scope="module")
def whole(forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupts."""
    root = tmp_path_factory.mktemp("whole")
    done = forked_runs.run(
        fit_arguments(dataset, root / "run"), root / "log", record=root / "run.samples"
    )
    assert done.code == 0, done.log
    return root / "run"


def finish(
    forked_runs: ForkedRuns, arguments: list[str], place: Path, kills: list[Kill]
) -> list[int]:
    """Run with each kill in turn, then to the end; returns the exit codes of the killed starts."""
    codes = [
        forked_runs.run(arguments, place / "log", kill=kill, record=place / "samples").code
        for kill in kills
    ]
    done = forked_runs.run(arguments, place / "log", record=place / "samples")
    assert done.code == 0, done.log
    return codes


LAST = STEPS_PER_EPOCH
INSTANTS = {
    "before the first update": [Kill("taken", 1)],
    "between update and count": [Kill("updated", 7)],
    "in the first batch of epoch 2": [Kill("taken", LAST + 1)],
    "in the last batch of epoch 1": [Kill("taken", LAST)],
    "right after the last of epoch 1": [Kill("counted", LAST)],
    "right after a save at an epoch's end": [Kill("saved", LAST // 5)],
    "in epoch 3": [Kill("updated", 2 * LAST + 6)],
    "twice within epoch 2": [Kill("updated", LAST + 4), Kill("updated", 5)],
    "in the last step": [Kill("counted", TOTAL_STEPS)],
    "five times": [Kill("counted", n) for n in (8, 9, 7, 11, 8)],
    "files of a save half written": [Kill("fsync", 3)],
    "late in a save": [Kill("fsync", 9)],
    "while a save is named": [Kill("replace", 2)],
    "in the second save": [Kill("fsync", 17)],
}


@pytest.mark.parametrize("kills", INSTANTS.values(), ids=INSTANTS.keys())
def test_a_killed_run_ends_as_if_never_killed(
    kills: list[Kill], forked_runs: ForkedRuns, dataset: Path, whole: Path, tmp_path: Path
) -> None:
    codes = finish(forked_runs, fit_arguments(dataset, tmp_path / "run"), tmp_path, kills)
    assert codes == [KILLED] * len(kills)
    assert_same(tmp_path / "run", whole)
    assert recorded(tmp_path / "samples") == recorded(whole.with_suffix(".samples"))


def test_a_run_killed_at_random_times_ends_as_if_never_killed(
    forked_runs: ForkedRuns, dataset: Path, whole: Path, tmp_path: Path
) -> None:
    chance = random.Random(5)
    arguments = fit_arguments(dataset, tmp_path / "run")
    for _ in range(6):
        forked_runs.run(arguments, tmp_path / "log", kill_after_s=chance.uniform(0.05, 1.2))
    assert forked_runs.run(arguments, tmp_path / "log").code == 0
    assert_same(tmp_path / "run", whole)


def test_workers_do_not_change_what_a_killed_run_ends_with(
    forked_runs: ForkedRuns, dataset: Path, whole: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", data__workers=2)
    finish(forked_runs, arguments, tmp_path, [Kill("counted", LAST + 3)])
    assert_same(tmp_path / "run", whole)


def test_a_stop_at_ninety_percent_does_not_become_the_start_of_later_epochs(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    """The bug that this program was born from: later epochs saw only the last tenth of the data."""
    ninety = round(0.9 * LAST)
    # Synchronous, so that the checkpoint is whole when the process is killed.
    saves = {"checkpoint__every": ninety, "checkpoint__asynchronous": "false"}
    arguments = fit_arguments(dataset, tmp_path / "run", **saves)
    finish(forked_runs, arguments, tmp_path, [Kill("saved", 1)])
    starts = [e for e in read_events(tmp_path / "run" / "metrics.jsonl") if e["event"] == "resume"]
    assert [start["step"] for start in starts] == [ninety]
    taken = recorded(tmp_path / "samples")
    for epoch in range(3):
        seen = [i for step in range(epoch * LAST, (epoch + 1) * LAST) for i in taken[step + 1]]
        assert len(seen) == len(set(seen)) == LAST * 8
    numbers = steps(tmp_path / "run")
    assert [numbers[e * LAST + 1]["epoch"] for e in range(3)] == [0, 1, 2]


def test_the_samples_of_every_step_are_those_of_the_order_functions(
    whole: Path, dataset: Path
) -> None:
    index = read_index(open_store(dataset / "train"))
    order = Order(
        global_batch=8,
        drawn=(LAST * 8,),
        canonical_nodes=8,
        shuffle_seed=3,
        shuffle_block_size=1 << 19,
    )
    taken = recorded(whole.with_suffix(".samples"))
    for epoch in range(3):
        planned = epoch_steps(order, [[shard.samples for shard in index.shards]], epoch)
        for place, ids in enumerate(planned):
            assert np.array_equal(np.sort(ids), taken[epoch * LAST + place + 1])


def test_the_first_samples_of_epochs_differ(whole: Path) -> None:
    taken = recorded(whole.with_suffix(".samples"))
    assert len({tuple(taken[epoch * LAST + 1]) for epoch in range(3)}) == 3


def test_a_finished_run_started_again_does_nothing_and_says_so(
    forked_runs: ForkedRuns, dataset: Path, whole: Path, tmp_path: Path
) -> None:
    before = (whole / "metrics.jsonl").read_bytes()
    end = end_of(whole)
    done = forked_runs.run(fit_arguments(dataset, whole), tmp_path / "log")
    assert done.code == 0
    assert f"finished at step {TOTAL_STEPS}" in done.log
    assert (whole / "metrics.jsonl").read_bytes() == before
    assert end_of(whole) == end
