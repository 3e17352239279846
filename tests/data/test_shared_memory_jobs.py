"""Jobs on one machine do not meet in shared memory, whatever happens to any of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from servers.datasets import SEQ_LEN, small_stream

from stream_pretrain.data.node import job_directory
from stream_pretrain.data.node.barrier import FileBarrier, NodeFailure
from stream_pretrain.data.node.job_directory import (
    SHARED_MEMORY,
    check_shared_memory,
    open_job_directory,
    remove_dead_job_directories,
)
from stream_pretrain.errors import ShardError, StorageError
from stream_pretrain.schema import World
from stream_pretrain.system.file_lock import is_locked

CHILD = Path(__file__).with_name("shared_memory_child.py")


def segments(token: str) -> list[str]:
    return sorted(path.name for path in SHARED_MEMORY.glob(f"{token}*"))


def start(data: Path, base: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(data), str(base), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_job_leaves_nothing_once_the_next_one_starts(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", compression=None)
    base = tmp_path / "jobs"
    victim, survivor = (start(stream.directory, base, "hold") for _ in range(2))
    assert victim.stdout is not None
    assert survivor.stdout is not None
    dead, alive = victim.stdout.readline().strip(), survivor.stdout.readline().strip()
    assert len(segments(dead)) == 6
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    job = open_job_directory(World(), base=base)
    assert segments(dead) == []
    assert not (base / dead).exists()
    assert len(segments(alive)) == 6
    out, err = survivor.communicate("go on\n", timeout=60)
    assert (survivor.returncode, out.strip()) == (0, "read 200"), err
    assert segments(alive) == []
    job.close()
    assert [path.name for path in base.iterdir()] == ["registry"]


@pytest.mark.slow
def test_ten_jobs_started_at_once_all_finish_and_leave_nothing(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", compression=None)
    base = tmp_path / "jobs"
    jobs = [start(stream.directory, base, "read") for _ in range(10)]
    tokens = set()
    for job in jobs:
        out, err = job.communicate(timeout=240)
        token, said = out.strip().splitlines()
        assert (job.returncode, said) == (0, "read 200"), err
        tokens.add(token)
    assert len(tokens) == 10
    assert [path.name for path in base.iterdir()] == ["registry"]
    assert [name for token in tokens for name in segments(token)] == []


def test_a_lock_that_a_live_process_holds_protects_its_job(tmp_path: Path) -> None:
    job = open_job_directory(World(), base=tmp_path)
    assert is_locked(job.directory / "owner")
    assert remove_dead_job_directories(tmp_path) == []
    assert job.directory.is_dir()
    job.close()
    job.close()
    assert not job.directory.exists()


def test_names_of_two_jobs_differ_and_names_of_one_job_count_up(tmp_path: Path) -> None:
    first, second = (open_job_directory(World(), base=tmp_path) for _ in range(2))
    assert first.token != second.token
    assert first.next_prefix() + 1 == first.next_prefix()
    first.close()
    second.close()


def test_all_ranks_of_a_node_share_one_directory(tmp_path: Path) -> None:
    world = {"world_size": 4, "local_world_size": 2}
    leader = open_job_directory(World(rank=2, local_rank=0, node_rank=1, **world), base=tmp_path)
    texts = ["/other/node", "", str(leader.directory), ""]
    other = open_job_directory(
        World(rank=3, local_rank=1, node_rank=1, **world), share=lambda _text: texts, base=tmp_path
    )
    assert other.directory == leader.directory
    assert other.next_prefix() == leader.next_prefix()
    leader_directory = leader.directory
    other.close()
    assert leader_directory.is_dir()
    leader.close()
    assert not leader_directory.exists()


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_directory, "SHARED_MEMORY", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"stream-pretrain-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="belongs to another user") as failure:
        job_directory.base_directory()
    assert failure.value.reason == "denied"


def test_too_little_shared_memory_is_said_before_it_is_a_bus_error() -> None:
    check_shared_memory(1_000_000, free=64 << 20)
    with pytest.raises(StorageError) as failure:
        check_shared_memory(10_000_000, free=64 << 20)
    text = str(failure.value)
    assert failure.value.reason == "full"
    assert "10,000,000 samples" in text
    assert "docker run --shm-size=84m" in text
    check_shared_memory(1_000)


def test_a_barrier_holds_until_all_are_there(tmp_path: Path) -> None:
    passed: list[int] = []
    barriers = [FileBarrier(tmp_path, "d", NodeFailure(tmp_path, "d"), 30.0) for _ in range(3)]

    def meet(me: int) -> None:
        barriers[me].begin("1.0", me)
        for _ in range(3):
            barriers[me](3)
        passed.append(me)

    threads = [threading.Thread(target=meet, args=(me,)) for me in range(3)]
    for thread in threads[:2]:
        thread.start()
    time.sleep(0.1)
    assert passed == []
    threads[2].start()
    for thread in threads:
        thread.join(timeout=10)
    assert sorted(passed) == [0, 1, 2]


def test_who_waits_at_a_barrier_learns_of_a_failure_and_says_who_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = NodeFailure(tmp_path, "d")
    barrier = FileBarrier(tmp_path, "d", failures, 0.05)
    barrier.begin("1.0", 0)
    threading.Timer(0.3, failures.record, args=["the shard is gone"]).start()
    with pytest.raises(ShardError, match="the shard is gone"):
        barrier(3)
    assert "waiting for workers [1, 2] of 3 to open an epoch" in caplog.text


def test_marks_of_a_killed_opening_do_not_count_for_the_next(tmp_path: Path) -> None:
    failures = NodeFailure(tmp_path, "d")
    killed, late = (FileBarrier(tmp_path, "d", failures, 30.0) for _ in range(2))
    killed.begin("1.0", 1)
    killed._meetings = 1
    killed._mark(1).touch()
    late.begin("2.0", 0)
    threading.Timer(0.2, failures.record, args=["nobody came"]).start()
    with pytest.raises(ShardError, match="nobody came"):
        late(2)


def test_marks_of_old_openings_are_removed(tmp_path: Path) -> None:
    barrier = FileBarrier(tmp_path, "d", NodeFailure(tmp_path, "d"), 30.0)
    for key in ("1.0", "2.0", "3.0"):
        mark = tmp_path / f"d-barrier-{key}-1-0"
        mark.touch()
        os.utime(mark, (0, 0))
    barrier.begin("3.0", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["d-barrier-3.0-1-0"]


def test_the_first_failure_is_the_one_that_is_told(tmp_path: Path) -> None:
    failures = NodeFailure(tmp_path, "d")
    failures.check()
    failures.record("first")
    failures.record("second")
    with pytest.raises(ShardError, match="first"):
        failures.check()
    failures.clear()
    failures.check()
    NodeFailure(tmp_path / "gone", "d").record("nobody can read this")


def test_a_worker_that_cannot_open_the_epoch_is_heard_by_the_others(tmp_path: Path) -> None:
    from local_dataset import opened_local

    dataset = opened_local(tmp_path)

    def broken(*_args: object) -> None:
        raise OSError("no room for the order")

    dataset._get_work = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(OSError, match="no room"):
        next(iter(dataset))
    assert dataset.failure() == "worker 0 could not open the epoch: no room for the order"
    with pytest.raises(ShardError, match="worker 0 could not open the epoch"):
        next(iter(dataset))
    dataset.close()


def test_the_order_of_a_killed_opening_is_replaced(tmp_path: Path) -> None:
    from local_dataset import opened_local

    dataset = opened_local(tmp_path)
    for name in ("epoch_shape", "epoch_data"):
        (SHARED_MEMORY / f"{dataset._name}_{name}").write_bytes(b"left over")
    assert len([sample for sample, _ in dataset]) == 200
    dataset.close()


def test_workers_of_a_fork_server_get_the_dataset_without_its_job(tmp_path: Path) -> None:
    import pickle

    from local_dataset import opened_local

    dataset = opened_local(tmp_path)
    dataset[3]
    copy = pickle.loads(pickle.dumps(dataset))
    assert not hasattr(copy, "_job")
    assert copy[3][0] == 3
    assert multiprocessing.current_process().name == "MainProcess"
    del copy
    dataset.close()


def test_rows_are_seq_len_and_one(tmp_path: Path) -> None:
    from local_dataset import opened_local

    dataset = opened_local(tmp_path)
    assert len(dataset[0][1]) == SEQ_LEN + 1
    dataset.close()
