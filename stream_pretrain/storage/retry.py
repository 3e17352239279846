"""Retry a function after transient storage failures.

Waits grow exponentially with jitter, and a deadline bounds all attempts together. Only the reasons
in `failures.TRANSIENT` are retried. `on_retry` is called once before each retry.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.failures import TRANSIENT, storage_error

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """What `on_retry` receives: attempt number `attempt` failed with `error`.

    The next attempt begins after `wait_s` seconds; there are `attempts` in all.
    """

    location: str
    attempt: int
    attempts: int
    wait_s: float
    error: StorageError


OnRetry = Callable[[Retry], None]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often to try and how long to wait: `first_wait_s`, twice that, … up to `max_wait_s`.

    `deadline_s` bounds all attempts together. `clock` and `sleep` are replaced in tests.
    """

    attempts: int = 8
    first_wait_s: float = 0.2
    max_wait_s: float = 15.0
    deadline_s: float | None = None
    clock: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)

    def wait_after(self, attempt: int) -> float:
        """Return the seconds to wait after failure number `attempt` (from 1), before jitter."""
        return float(min(self.max_wait_s, self.first_wait_s * 2 ** (attempt - 1)))


def call_with_retries(
    function: Callable[[], T],
    *,
    location: str,
    operation: str,
    policy: RetryPolicy,
    on_retry: OnRetry | None = None,
) -> T:
    """Return `function()`, retried after transient failures.

    The same damage twice in a row means that the stored object itself is damaged: it is not fetched
    a third time.

    Raises:
        StorageError: the last failure, with the number of attempts; or the first one for a reason
            that waiting cannot change.
    """
    started, damage = policy.clock(), ""
    for attempt in range(1, policy.attempts + 1):
        try:
            return function()
        except Exception as raised:
            error = storage_error(raised, location, operation)
            if error is raised and error.reason not in TRANSIENT:
                raise
            if error.reason not in TRANSIENT:
                raise error from None
            elapsed_s = policy.clock() - started
            wait_s = policy.wait_after(attempt) * random.uniform(0.7, 1.0)
            late = policy.deadline_s is not None and elapsed_s + wait_s >= policy.deadline_s
            same_damage = error.reason == "damaged" and str(error) == damage
            damage = str(error) if error.reason == "damaged" else ""
            if attempt == policy.attempts or late or same_damage:
                raise _final_error(error, attempt, elapsed_s, late=late) from None
            if on_retry is not None:
                on_retry(
                    Retry(
                        location=location,
                        attempt=attempt,
                        attempts=policy.attempts,
                        wait_s=wait_s,
                        error=error,
                    )
                )
            policy.sleep(wait_s)
    raise AssertionError("unreachable: attempts is at least one")


def _final_error(error: StorageError, attempts: int, seconds: float, *, late: bool) -> StorageError:
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    limit = "; the deadline allows no more" if late else ""
    return StorageError(f"{error} (gave up after {tries} in {seconds:.1f} s{limit})", error.reason)
