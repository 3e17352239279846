"""Choose among the checkpoints of a run: the newest that is whole, or exactly the step asked for.

A damaged checkpoint is reported and the next older one is tried. No file is read here: the caller
passes a function that reads one checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from stream_pretrain.errors import CheckpointError, StorageError

T = TypeVar("T")
Damage: TypeAlias = "CheckpointError | StorageError"


def steps_to_try(steps: Sequence[int], step: int | None, *, url: str, advice: str) -> list[int]:
    """Return all `steps` (given in ascending order) newest first, or only `step`.

    Raises:
        CheckpointError: the step asked for is not among them; the message ends with `advice`.
    """
    if step is None:
        return [*reversed(steps)]
    if step not in steps:
        existing = ", ".join(map(str, steps)) or "none"
        raise CheckpointError(
            f"{url}: no checkpoint of step {step} (there are: {existing}). {advice}"
        )
    return [step]


def first_whole(
    candidates: Iterable[int],
    read: Callable[[int], T],
    *,
    exact: bool,
    report: Callable[[int, Damage], None],
) -> T | None:
    """Return what `read` returns for the first candidate that is whole; None when none is.

    `report` is called with each damaged candidate and its error before the next one is tried. With
    `exact` the first error is raised, and so is always an error that is no damage (`is_damage`).
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
    """Return True when another checkpoint may be whole, False when the storage does not answer."""
    return isinstance(error, CheckpointError) or error.reason in ("absent", "damaged")
