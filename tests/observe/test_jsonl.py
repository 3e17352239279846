"""metrics.jsonl survives kills, and a resume leaves every step once."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_pretrain.errors import StorageError
from stream_pretrain.observe.jsonl import MetricsFile, read_events, remove_incomplete_line


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[MetricsFile]:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    yield file
    file.close()


def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"event": "step", "step": number, "time": 0.0, **fields}


def steps_in(path: Path) -> list[int]:
    return [event["step"] for event in read_events(path)]


def test_every_append_is_one_line_that_can_be_read_at_once(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "run" / "metrics.jsonl")
    for number in range(3):
        metrics.append(step(number, loss=0.1 * number))
        assert len(metrics.path.read_text().splitlines()) == number + 1
    metrics.close()
    assert [event["loss"] for event in read_events(metrics.path)] == [0.0, 0.1, 0.2]


def test_floats_come_back_bit_for_bit(metrics: MetricsFile) -> None:
    metrics.append(step(1, loss=0.1 + 0.2))
    assert next(read_events(metrics.path))["loss"] == 0.1 + 0.2


def test_nonfinite_values_stay_strict_json_and_keep_their_name(metrics: MetricsFile) -> None:
    metrics.append(step(1, loss=float("nan"), lr=0.1, sets={"a": [1.0, float("inf")]}))
    line = json.loads(metrics.path.read_text(), parse_constant=pytest.fail)
    assert line["loss"] is None
    assert line["lr"] == 0.1
    assert line["nonfinite"] == {"loss": "nan", "sets.a.1": "inf"}
    event = next(read_events(metrics.path))
    assert math.isnan(event["loss"])
    assert event["sets"] == {"a": [1.0, None]}


def test_a_cut_removes_by_value_and_not_by_position(metrics: MetricsFile) -> None:
    for number in (0, 1, 5, 2, 3, 6, 3):
        metrics.append(step(number))
    assert metrics.cut_after(3) == 2
    assert steps_in(metrics.path) == [0, 1, 2, 3, 3]
    metrics.append(step(4))
    assert steps_in(metrics.path) == [0, 1, 2, 3, 3, 4]


def test_a_cut_with_nothing_to_remove_leaves_the_file_alone(metrics: MetricsFile) -> None:
    assert metrics.cut_after(3) == 0
    metrics.append(step(1))
    before = metrics.path.stat()
    assert metrics.cut_after(1) == 0
    assert metrics.path.stat().st_ino == before.st_ino
    assert [path.name for path in metrics.path.parent.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    "torn", [b'{"event": "step", "st', b'{"event": "step", "step": 2}', b"\0" * 99]
)
def test_an_incomplete_last_line_is_removed(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.append(step(1))
    metrics.close()
    path.write_bytes(path.read_bytes() + torn)
    assert steps_in(path) == [1]
    assert metrics.cut_after(9) == 1
    assert path.read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("damage", [b"\0\0\0\n", b"[1]\n", b'{"event": "step"}\n', b"\xff\xfe\n"])
def test_damaged_lines_in_the_middle_are_left_out(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"event":"step","step":1}\n' + damage + b'{"event":"step","step":2}\n')
    assert steps_in(path) == [1, 2]
    assert MetricsFile(path).cut_after(2) == 1


def test_appending_after_a_kill_does_not_join_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"event":"step","step":1}\n{"event":"st')
    metrics = MetricsFile(path)
    metrics.append(step(2))
    metrics.close()
    assert steps_in(path) == [1, 2]


def test_an_incomplete_line_longer_than_one_read_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 200_000)
    assert remove_incomplete_line(path) == 200_000
    assert path.read_bytes() == b"{}\n"
    path.write_bytes(b"x" * 200_000)
    assert remove_incomplete_line(path) == 200_000
    assert remove_incomplete_line(tmp_path / "absent") == 0


def test_a_kill_before_the_rename_leaves_the_old_file(
    metrics: MetricsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        metrics.append(step(number))

    def killed(*_: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        metrics.cut_after(2)
    monkeypatch.undo()
    assert steps_in(metrics.path) == [0, 1, 2, 3, 4]
    assert metrics.cut_after(2) == 2


def test_a_snapshot_holds_the_lines_written_before_it(metrics: MetricsFile) -> None:
    copy = metrics.path.parent / "up" / "copy.jsonl"
    assert metrics.snapshot(copy) == 0
    metrics.append(step(1))
    size = metrics.snapshot(copy)
    metrics.append(step(2))
    assert steps_in(copy) == [1]
    assert copy.stat().st_size == size


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_with_what_to_do() -> None:
    metrics = MetricsFile(Path("/dev/full"))
    with pytest.raises(StorageError, match=r"No space left on device\). Free some space") as caught:
        metrics.append(step(1))
    assert caught.value.reason == "full"
    with pytest.raises(StorageError):
        metrics.close()  # /dev/full cannot be synced either


def test_a_file_that_cannot_be_made_is_reported_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the run directory should be")
    with pytest.raises(StorageError, match="Make it writable") as caught:
        MetricsFile(tmp_path / "run" / "metrics.jsonl").append(step(1))
    assert caught.value.reason == "other"


WRITER = """
import sys
from pathlib import Path
from stream_pretrain.observe.jsonl import MetricsFile
metrics = MetricsFile(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    metrics.append({"event": "step", "step": number, "padding": "x" * 5000})
    if number % 10 == 0:
        metrics.cut_after(number)
        metrics.sync()
"""


def test_a_killed_writer_loses_at_most_the_line_it_was_writing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for attempt in range(3):
        path.unlink(missing_ok=True)
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline, "the writer has not started"
            time.sleep(0.01)
        time.sleep(0.05 + 0.03 * attempt)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(timeout=60) == -signal.SIGKILL
        whole = steps_in(path)
        assert whole == list(range(1, len(whole) + 1))
        metrics = MetricsFile(path)
        assert metrics.cut_after(len(whole)) <= 1
        metrics.append(step(len(whole) + 1))
        metrics.close()
        assert steps_in(path) == list(range(1, len(whole) + 2))
