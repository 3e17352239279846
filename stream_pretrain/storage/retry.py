"""Try again, but not for ever. In: a function and a policy. Out: its result or its last
`StorageError`.

Waits grow and are jittered; a deadline bounds all of it. Only transient reasons are tried again.
Each retry calls `on_retry` once. Does not know what it retries.
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
    """What `on_retry` is told: `attempt` failed with `error`, the next begins after `wait_s`
    seconds.
    """

    place: str
    attempt: int
    attempts: int
    wait_s: float
    error: StorageError


OnRetry = Callable[[Retry], None]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """At most `attempts` tries, waiting `first_wait_s`, twice that, … up to `longest_wait_s` in
    between.
    """

    attempts: int = 8
    first_wait_s: float = 0.2
    longest_wait_s: float = 15.0
    deadline_s: float | None = None
    clock: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)

    def wait_after(self, attempt: int) -> float:
        """Seconds to wait after the failure number `attempt` (1 is the first), before jitter."""
        return float(min(self.longest_wait_s, self.first_wait_s * 2 ** (attempt - 1)))


def retried(
    function: Callable[[], T],
    *,
    place: str,
    doing: str,
    policy: RetryPolicy,
    on_retry: OnRetry | None = None,
) -> T:
    """`function()`, tried again after transient failures; else the `StorageError` of the last one.

    The same damage twice in a row is the object's own: it is not fetched a third time.
    """
    began, damage = policy.clock(), ""
    for attempt in range(1, policy.attempts + 1):
        try:
            return function()
        except Exception as raised:
            error = storage_error(raised, place, doing)
            if error is raised and error.reason not in TRANSIENT:
                raise
            if error.reason not in TRANSIENT:
                raise error from None
            waited = policy.clock() - began
            wait_s = policy.wait_after(attempt) * random.uniform(0.7, 1.0)
            late = policy.deadline_s is not None and waited + wait_s >= policy.deadline_s
            settled = error.reason == "damaged" and str(error) == damage
            damage = str(error) if error.reason == "damaged" else ""
            if attempt == policy.attempts or late or settled:
                raise _final(error, attempt, waited, late=late) from None
            if on_retry is not None:
                on_retry(
                    Retry(
                        place=place,
                        attempt=attempt,
                        attempts=policy.attempts,
                        wait_s=wait_s,
                        error=error,
                    )
                )
            policy.sleep(wait_s)
    raise AssertionError("unreachable: attempts is at least one")


def _final(error: StorageError, attempts: int, seconds: float, *, late: bool) -> StorageError:
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    limit = "; the deadline allows no more" if late else ""
    return StorageError(f"{error} (gave up after {tries} in {seconds:.1f} s{limit})", error.reason)
