"""Which checkpoints go. In: steps and rules. Out: steps to delete. Does not delete.

Nothing that is counted here may be damaged or uncommitted: a rule that counts those can delete the
last good one.
"""

from __future__ import annotations

from collections.abc import Collection


def steps_to_delete(
    saved: Collection[int],
    *,
    keep_last: int,
    keep_every: int | None = None,
    best: int | None = None,
    verified: int | None = None,
) -> set[int]:
    """Steps among `saved` that no rule keeps.

    Kept are the `keep_last` newest, multiples of `keep_every`, the `best` one, and the newest that
    is `verified` (known to be whole).
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, got {keep_last}")
    kept = set(sorted(saved)[-keep_last:])
    if keep_every is not None:
        kept |= {step for step in saved if step % keep_every == 0}
    kept |= {step for step in (best, verified) if step is not None}
    return set(saved) - kept
