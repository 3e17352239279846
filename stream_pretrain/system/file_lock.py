"""Locks on files and directories against other processes, and against other threads.

A path goes in, a file descriptor that holds the lock comes out; closing it releases the lock, and
so does the end of the process. Locks are advisory (`flock`). Nothing here says who owns a lock:
callers write that into the file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER_EXIT_SECONDS = 3.0
"""A killed process keeps its locks until the kernel has taken it apart; a restart may be faster."""
_POLL_SECONDS = 0.05


def try_lock(path: Path, *, wait_s: float = 0.0, mode: int = 0o600) -> int | None:
    """Lock a file exclusively, creating it if absent; None if another still has it after `wait_s`.

    `mode` holds the permissions of a file that is created. The descriptor is open for reading and
    writing, so the owner may be written into the file.
    """
    descriptor = _open_file(path, mode)
    granted = False
    try:
        granted = _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, wait_s)
    finally:
        if not granted:
            os.close(descriptor)
    return descriptor if granted else None


def lock_shared(path: Path) -> int:
    """Lock a file, created if absent, together with others that share it; wait for its owner."""
    descriptor = _open_file(path, 0o600)
    _flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def is_locked(path: Path) -> bool:
    """True while some process has the lock of this file, shared or not; an absent file has none."""
    if not path.exists():
        return False
    descriptor = try_lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Own the lock of a file, created if absent, while the block runs; wait for it first."""
    with _locked(_open_file(path, 0o600)):
        yield


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Own the lock of an existing directory while the block runs; wait for it first."""
    with _locked(os.open(directory, os.O_RDONLY | os.O_DIRECTORY)):
        yield


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until `condition` is true; False if it is not after `seconds`. It is asked at least
    once.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _open_file(path: Path, mode: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    try:
        _flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _flock(descriptor: int, flags: int, wait_s: float = 0.0) -> bool:
    """Lock an open file. Without LOCK_NB the kernel waits; with it, False after `wait_s`."""

    def is_granted() -> bool:
        try:
            fcntl.flock(descriptor, flags)
        except BlockingIOError:
            return False
        return True

    return wait_for(is_granted, wait_s)
