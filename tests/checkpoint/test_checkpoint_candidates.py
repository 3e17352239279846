"""The newest whole checkpoint is chosen; damage is stepped over and reported."""

from __future__ import annotations

import pytest

from stream_pretrain.checkpoint.candidates import Damage, first_whole, is_damage, steps_to_try
from stream_pretrain.errors import CheckpointError, StorageError

FAULTS: dict[int, Damage] = {
    8: CheckpointError("hash"),
    6: StorageError("gone", "absent"),
    2: StorageError("no answer", "timeout"),
}


def read(step: int) -> str:
    if step in FAULTS:
        raise FAULTS[step]
    return f"step {step}"


def test_all_steps_newest_first_or_the_one_wanted() -> None:
    assert steps_to_try([2, 4, 8], None, url="run", advice="") == [8, 4, 2]
    assert steps_to_try([2, 4, 8], 4, url="run", advice="") == [4]
    assert steps_to_try([], None, url="run", advice="") == []
    with pytest.raises(CheckpointError, match=r"run: no checkpoint of step 5 \(there are: 2, 4\)"):
        steps_to_try([2, 4], 5, url="run", advice="Choose one of these.")
    with pytest.raises(CheckpointError, match=r"\(there are: none\)\. Choose"):
        steps_to_try([], 5, url="run", advice="Choose one of these.")


def test_damaged_checkpoints_are_reported_and_stepped_over() -> None:
    reported: list[tuple[int, Damage]] = []

    def report(step: int, error: Damage) -> None:
        reported.append((step, error))

    assert first_whole([8, 6, 4, 2], read, exact=False, report=report) == "step 4"
    assert reported == [(8, FAULTS[8]), (6, FAULTS[6])]
    assert first_whole([8, 6], read, exact=False, report=report) is None
    assert first_whole([], read, exact=False, report=report) is None


def test_the_step_asked_for_has_no_substitute() -> None:
    with pytest.raises(CheckpointError, match="hash"):
        first_whole([8], read, exact=True, report=lambda *_: pytest.fail("reported"))


def test_storage_that_does_not_answer_ends_the_search() -> None:
    with pytest.raises(StorageError, match="no answer"):
        first_whole([2, 4], read, exact=False, report=lambda *_: pytest.fail("reported"))
    assert not is_damage(FAULTS[2])
