"""Locks exclude other processes, end with their owner, and wait for one that is being killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stream_pretrain.system.file_lock import (
    directory_lock,
    file_lock,
    is_locked,
    lock_shared,
    try_lock,
    wait_for,
)

OWNER = """
import sys, time
from pathlib import Path
from stream_pretrain.system.file_lock import try_lock
assert try_lock(Path(sys.argv[1])) is not None
print("locked", flush=True)
time.sleep(60)
"""


def test_a_lock_excludes_others_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    assert not path.exists()
    descriptor = try_lock(path, mode=0o640)
    assert descriptor is not None
    assert path.stat().st_mode & 0o777 == 0o640
    assert is_locked(path)
    assert try_lock(path) is None
    os.close(descriptor)
    assert not is_locked(path)


def test_a_shared_lock_admits_other_shared_ones_only(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = lock_shared(path), lock_shared(path)
    os.close(first)
    assert try_lock(path) is None
    assert is_locked(path)
    os.close(second)
    assert not is_locked(path)


def test_a_refused_lock_leaves_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path):
        before = len(list(Path("/proc/self/fd").iterdir()))
        assert try_lock(path) is None
        assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_block_waits_for_the_block_of_another_thread(tmp_path: Path, kind: str) -> None:
    lock = file_lock if kind == "file" else directory_lock
    path = tmp_path / "lock" if kind == "file" else tmp_path
    order: list[str] = []

    def wait_and_enter() -> None:
        with lock(path):
            order.append("second")

    with lock(path):
        thread = threading.Thread(target=wait_and_enter)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_the_lock_of_a_killed_process_is_free_within_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "locked\n"
        assert try_lock(path) is None
        threading.Timer(0.3, owner.send_signal, [signal.SIGKILL]).start()
        descriptor = try_lock(path, wait_s=20)
        assert descriptor is not None
        os.close(descriptor)
        assert owner.wait(20) == -signal.SIGKILL
    finally:
        owner.kill()
        owner.wait(20)
        owner.stdout.close()


def test_a_condition_is_asked_at_least_once_and_until_its_time_is_over() -> None:
    assert wait_for(lambda: True, 0.0)
    begun = time.monotonic()
    assert not wait_for(lambda: False, 0.2)
    assert 0.2 <= time.monotonic() - begun < 10
    answers = iter([False, False, True])
    assert wait_for(lambda: next(answers), 10)
