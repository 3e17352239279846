"""One owner per run directory: the second refuses, a dead one is replaced, a loser stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from stream_pretrain.checkpoint.lease import hold_lease
from stream_pretrain.checkpoint.lease_owner import LEASE_NAME, Owner, new_owner
from stream_pretrain.checkpoint.process_identity import (
    ProcessIdentity,
    is_alive,
    this_process,
    token_is_alive,
)
from stream_pretrain.errors import OwnerError, StorageError
from stream_pretrain.storage.store import Store, open_store

HOLD = """
import sys, time
from stream_pretrain.checkpoint.lease import hold_lease
from stream_pretrain.storage.store import open_store
with hold_lease(open_store(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["local", "bucket"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A run directory of either kind."""
    if request.param == "local":
        return open_store(tmp_path / "run")
    return open_store(request.getfixturevalue("bucket")).child("run")


def owned_by_child(run: Store) -> subprocess.Popen[str]:
    """Another process that owns the run directory."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, run.location], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "held"
    return child


def expect_no_message(message: str) -> None:
    raise AssertionError(f"unexpected: {message}")


def on_another_machine(owner: Owner, **process: Any) -> Owner:
    """The same owner on a machine that cannot be seen from here."""
    away = replace(owner.process, boot_id="1" * 8, host="elsewhere", **process)
    return replace(owner, process=away)


def test_second_process_refuses_and_a_dead_first_is_replaced(run: Store) -> None:
    child = owned_by_child(run)
    with child:
        try:
            with pytest.raises(OwnerError, match=rf"in use by pid {child.pid} on .*, since 20"):
                hold_lease(run, report=expect_no_message).__enter__()
        finally:
            child.kill()
    told: list[str] = []
    started = time.monotonic()
    with hold_lease(run, report=told.append) as lease:
        lease.confirm()
    assert time.monotonic() - started < 5
    assert f"taken over from pid {child.pid}" in told[0]


def test_an_owner_that_is_being_killed_is_waited_for(run: Store) -> None:
    """A restart may be faster than the kernel is in taking the killed process apart."""
    child = owned_by_child(run)
    with child:
        threading.Timer(0.5, child.kill).start()
        with hold_lease(run, report=lambda _: None) as lease:
            lease.confirm()


def test_run_directory_that_was_left_in_order_is_taken_silently(run: Store) -> None:
    for _ in range(2):
        with hold_lease(run, report=expect_no_message) as lease:
            lease.confirm()


def test_one_process_does_not_own_a_run_twice(run: Store) -> None:
    with hold_lease(run), pytest.raises(OwnerError, match=f"pid {os.getpid()}"):
        hold_lease(run).__enter__()


def test_lock_file_that_was_removed_is_noticed(tmp_path: Path) -> None:
    with hold_lease(open_store(tmp_path)) as lease:
        (tmp_path / LEASE_NAME).unlink()
        with pytest.raises(OwnerError, match="was removed or replaced"):
            lease.confirm()


def test_silent_owner_on_another_machine_is_replaced_after_its_time(bucket: str) -> None:
    run = open_store(bucket)
    run.write(LEASE_NAME, on_another_machine(new_owner()).to_json())
    told: list[str] = []
    started = time.monotonic()
    with hold_lease(run, seconds=0.6, report=told.append) as lease:
        lease.confirm()
    assert time.monotonic() - started >= 0.6
    assert "waiting" in told[0]
    assert "on elsewhere" in told[1]


def test_owner_on_another_machine_that_renews_is_left_alone(bucket: str) -> None:
    run = open_store(bucket)
    other = on_another_machine(new_owner())
    run.write(LEASE_NAME, other.to_json())

    def renew(message: str) -> None:
        assert "waiting" in message
        run.write(LEASE_NAME, replace(other, renewed=time.time() + 1).to_json())

    with pytest.raises(OwnerError, match="on elsewhere"):
        hold_lease(run, seconds=2, report=renew).__enter__()


def test_owner_that_lost_its_lease_stops_before_its_next_receipt(bucket: str) -> None:
    run = open_store(bucket)
    with hold_lease(run, seconds=60) as lease:
        run.write(LEASE_NAME, on_another_machine(new_owner(), pid=77).to_json())
        for _ in range(2):
            with pytest.raises(OwnerError, match=r"pid 77 on elsewhere.* owns the run directory"):
                lease.confirm()
    owner = Owner.from_json(run.read(LEASE_NAME))
    assert owner is not None
    assert not owner.released, "the loser leaves the winner's lease alone"


def test_lease_that_was_deleted_is_lost(bucket: str) -> None:
    run = open_store(bucket)
    with hold_lease(run) as lease:
        run.delete(LEASE_NAME)
        with pytest.raises(OwnerError, match="nobody owns"):
            lease.confirm()


def test_lease_is_renewed_while_it_is_held(bucket: str) -> None:
    run = open_store(bucket)
    with hold_lease(run, seconds=0.4):
        before = run.read(LEASE_NAME)
        deadline = time.monotonic() + 10
        while run.read(LEASE_NAME) == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_renewal_whose_answer_got_lost_is_not_a_loss(bucket: str) -> None:
    """A write that was retried conflicts with its own first attempt."""
    run = open_store(bucket)
    with hold_lease(run, seconds=60) as lease:
        owner = Owner.from_json(run.read(LEASE_NAME))
        assert owner is not None
        run.write(LEASE_NAME, replace(owner, renewed=time.time() + 5).to_json())
        lease.confirm()
        lease.confirm()


def test_unreadable_lease_counts_as_silent(bucket: str) -> None:
    run = open_store(bucket)
    run.write(LEASE_NAME, b"{")
    told: list[str] = []
    with hold_lease(run, seconds=0.3, report=told.append):
        pass
    assert "an unnamed process" in told[0]


def test_run_directory_that_cannot_be_reached_is_a_storage_error(s3: object) -> None:
    del s3
    with pytest.raises(StorageError, match="no-bucket-of-ours"):
        hold_lease(open_store("s3://no-bucket-of-ours/run")).__enter__()


def test_lease_that_never_holds_still_is_an_error(bucket: str) -> None:
    class KeepsChanging(type(open_store(bucket))):  # type: ignore[misc]
        """Another process writes between every two requests."""

        def read(self, key: str) -> bytes:
            self.write(key, new_owner().to_json())
            return bytes(super().read(key))

    run = open_store(bucket)
    run.write(LEASE_NAME, new_owner().to_json())
    with pytest.raises(OwnerError, match="changes all the time"):
        hold_lease(KeepsChanging(run.parsed_location, run.config)).__enter__()


def test_owner_is_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    del capsys
    owner = new_owner()
    assert Owner.from_json(owner.to_json()) == owner
    assert Owner.from_json(json.dumps({"uuid": "x"}).encode()) is None
    assert Owner.from_json(b"\xff") is None


def test_process_is_known_by_boot_namespace_pid_and_start() -> None:
    me = this_process()
    assert is_alive(me) is True
    assert is_alive(replace(me, start_ticks=me.start_ticks + 1)) is False, (
        "the pid was given to another"
    )
    assert is_alive(replace(me, pid=2**22 + 1)) is False
    assert is_alive(replace(me, boot_id="2" * 8)) is None
    assert is_alive(replace(me, pid_namespace=me.pid_namespace + 1)) is None, "another container"
    assert token_is_alive("nonsense") is None
    assert ProcessIdentity(**asdict(me)) == me


def test_process_that_only_waits_to_be_reaped_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    stat = Path(f"/proc/{child.pid}/stat")
    start = int(stat.read_text().rpartition(")")[2].split()[19])
    deadline = time.monotonic() + 20
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert is_alive(replace(this_process(), pid=child.pid, start_ticks=start)) is False
    child.wait()
