"""Choose among the checkpoints of a run: the newest that is whole, or exactly the step asked for.

Steps go in; what a reader makes of the first whole checkpoint comes out. Damaged ones are stepped
over and reported. Nothing here reads files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from stream_pretrain.errors import CheckpointError, StorageError

T = TypeVar("T")
Damage: TypeAlias = "CheckpointError | StorageError"


def steps_to_try(steps: Sequence[int], wanted: int | None, *, url: str, advice: str) -> list[int]:
    """All `steps` (ascending), newest first; with `wanted` that one alone.

    Raises:
        CheckpointError: the step asked for is not among them; the message ends with `advice`.
    """
    if wanted is None:
        return [*reversed(steps)]
    if wanted not in steps:
        there = ", ".join(str(step) for step in steps) or "none"
        raise CheckpointError(
            f"{url}: no checkpoint of step {wanted} (there are: {there}). {advice}"
        )
    return [wanted]


def first_whole(
    candidates: Iterable[int],
    read: Callable[[int], T],
    *,
    exact: bool,
    report: Callable[[int, Damage], None],
) -> T | None:
    """What `read` makes of the first candidate that is whole; None where none is.

    `report` is called with each damaged one, and its error, before the next is tried. With `exact`
    the first error is raised, as is every error that no other checkpoint would avoid.
    """
    for step in candidates:
        try:
            return read(step)
        except (CheckpointError, StorageError) as error:
            if exact or not is_damage(error):
                raise
            report(step, error)
    return None


def is_damage(error: Damage) -> bool:
    """True where another checkpoint may do; False where the storage itself does not answer."""
    return isinstance(error, CheckpointError) or error.reason in ("absent", "damaged")
