"""State, receipts and retention: plain values, checked on the way in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_pretrain.checkpoint.layout import Receipt, make_receipt, parse_step_name, step_name
from stream_pretrain.checkpoint.publish import steps_to_delete
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.errors import CheckpointError
from stream_pretrain.schema import FileStamp

FULL = TrainState(
    step=7,
    data_step=9,
    tokens=4096,
    phase=1,
    phase_start=3,
    digest="0123456789abcdef",
    fingerprint={"digest": "ff", "seed": 17},
    phases=[{"phase": 0, "data_step": 0}, {"phase": 1, "data_step": 3}],
    skipped=[[4, 5]],
    seconds=12.5,
    samples_per_stream={"web": 40, "books": 2},
    spike={"mean": 2.0, "count": 9},
    best={"step": 6, "loss": 1.5},
    run_id="r1",
    world_size=2,
)


def test_state_is_read_back_whole() -> None:
    again = TrainState.from_json(FULL.to_json(), "here")
    assert again == FULL
    copy = FULL.copy()
    copy.skipped.append([8, 8])
    copy.spike["mean"] = 3.0
    assert again == FULL


def test_rewind_changes_the_object_that_others_hold() -> None:
    state = TrainState(step=100)
    reference = state
    state.replace_with(FULL)
    assert reference == FULL


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": -1}, "step is -1"),
        ({"step": "7"}, "step is '7'"),
        ({"step": True}, "step is True"),
        ({"digest": "xyz"}, "digest is 'xyz', not 16 hex digits"),
        ({"phase_start": 10}, "phase_start 10 is beyond data_step 9"),
        ({"skipped": [[5, 4]]}, r"skipped holds \[5, 4\]"),
        ({"skipped": [7]}, "skipped holds 7"),
        ({"seconds": -0.5}, "seconds is -0.5"),
        ({"world_size": 0}, "world_size is 0"),
        ({"schema_version": 2}, "state schema 2, this version reads 1"),
        ({"novel": 1}, "novel is unknown"),
        ({"tokens": ...}, "tokens is missing"),
    ],
)
def test_state_that_no_run_can_have_is_refused(change: dict[str, Any], words: str) -> None:
    raw = {**json.loads(FULL.to_json()), **change}
    text = json.dumps({k: v for k, v in raw.items() if v is not ...})
    with pytest.raises(CheckpointError, match=rf"^here: .*{words}"):
        TrainState.from_json(text, "here")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\xff"])
def test_state_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"^here: not"):
        TrainState.from_json(text, "here")


def test_skipped_ranges_are_joined() -> None:
    state = TrainState()
    for first, last in [(10, 12), (3, 4), (13, 13), (5, 8), (11, 11)]:
        state.skip(first, last)
    assert state.skipped == [[3, 8], [10, 13]]
    assert [step for step in range(15) if state.is_skipped(step)] == [
        *range(3, 9),
        *range(10, 14),
    ]
    with pytest.raises(ValueError, match="1 <= first <= last"):
        state.skip(3, 2)


def test_step_names_sort_and_are_read_back() -> None:
    assert step_name(1000) == "step-00001000"
    assert parse_step_name("step-00001000") == 1000
    assert parse_step_name(step_name(10**9)) == 10**9
    for other in ("step-1000", "step-00001000.tmp", ".saving-step-00001000", "step-000001000"):
        assert parse_step_name(other) is None


def receipt() -> Receipt:
    stamps = [FileStamp(name=n, size=3, xxh3_128="ab" * 16) for n in ("b", "a")]
    return make_receipt(
        step=4, data_step=5, digest="0" * 16, world_size=2, created=1.5, stamps=stamps
    )


def test_receipt_is_read_back() -> None:
    assert [stamp.name for stamp in receipt().files] == ["a", "b"]
    assert Receipt.from_json(receipt().to_json().encode(), "here") == receipt()
    assert receipt().size == 6


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=7))
def test_any_bit_flipped_in_a_receipt_is_noticed(position: int, bit: int) -> None:
    data = bytearray(receipt().to_json().encode())
    data[position % len(data)] ^= 1 << bit
    with pytest.raises(CheckpointError, match=r"^here: "):
        Receipt.from_json(bytes(data), "here")


@pytest.mark.parametrize("text", [b"", b" \n", b"null", b"{}", b"\xff\xfe"])
def test_receipt_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"^here: (empty|damaged) receipt"):
        Receipt.from_json(text, "here")


def test_retention_keeps_what_a_rule_names() -> None:
    saved = range(100, 1100, 100)
    assert steps_to_delete(saved, keep_last=2) == {*range(100, 900, 100)}
    assert steps_to_delete(saved, keep_last=1, keep_every=500) == {*saved} - {500, 1000}
    assert steps_to_delete(saved, keep_last=1, best=300, verified=200) == {*saved} - {
        200,
        300,
        1000,
    }
    assert steps_to_delete([], keep_last=3) == set()
    assert steps_to_delete([5], keep_last=3, best=4, verified=9) == set()
    with pytest.raises(ValueError, match="keep_last must be at least 1"):
        steps_to_delete([1], keep_last=0)


@given(
    st.sets(st.integers(min_value=0, max_value=50)),
    st.integers(min_value=1, max_value=5),
    st.one_of(st.none(), st.integers(min_value=1, max_value=10)),
    st.one_of(st.none(), st.integers(min_value=0, max_value=50)),
)
def test_retention_never_deletes_the_verified_or_the_newest(
    saved: set[int], keep_last: int, keep_every: int | None, verified: int | None
) -> None:
    deleted = steps_to_delete(saved, keep_last=keep_last, keep_every=keep_every, verified=verified)
    assert deleted <= saved
    assert verified not in deleted
    assert not deleted & set(sorted(saved)[-keep_last:])
    assert len(saved - deleted) >= min(len(saved), keep_last)
