"""When to stop. In: signals, the clock, the plan's limits. Out: one word. Does not save or exit.

A signal sets a flag; the loop finishes its step, saves and leaves with 75. A second signal leaves
at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
EXIT_STOPPED = 75
ONE_REQUEST_S = 1.0
"""Signals this close together are one request: `timeout` signals a process and then its group."""


class SignalFlag:
    """Remembers that a stop signal came. `installed()` puts the handlers in, `removed()` the old
    ones back.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._at = 0.0
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def install(self) -> None:
        """Take over SIGTERM, SIGINT and SIGUSR1 in this process (main thread only)."""
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)

    def remove(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        again = self.name is not None and time.monotonic() - self._at >= ONE_REQUEST_S
        if again and number != signal.SIGUSR1:
            sys.stderr.write(f"Second signal ({signal.Signals(number).name}): leaving at once.\n")
            sys.stderr.flush()
            kill_children()
            os._exit(128 + number)
        if self.name is None:
            self.name = signal.Signals(number).name
            self._at = time.monotonic()


class Deadline:
    """A point in time by which the run must have stopped, `margin_s` of it kept for the save."""

    def __init__(self, at: float | None, now: Callable[[], float] = time.time) -> None:
        self.at = at
        self.margin_s = 0.0
        self._now = now

    @property
    def due(self) -> bool:
        """True from `margin_s` seconds before the deadline on."""
        return self.at is not None and self._now() + self.margin_s >= self.at


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Stop signals that come in the block are delivered after it, and processes started in it never
    get them: the fork server of the workers must outlive a signal to the whole group.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """For a DataLoader worker: a signal to the whole group must not take its batches from the rank
    that saves.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def kill_children() -> None:
    """Kill this process's multiprocessing children.

    Workers ignore SIGTERM, and multiprocessing joins its children without a time limit at exit:
    without this, every exit by exception would hang (TRAPS B).
    """
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()
