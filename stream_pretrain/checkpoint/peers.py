"""Ranks of one save or load, talking. In: a gloo group of their own (None for one process). Out: agreed results.

Whatever fails on one rank is raised on all of them, so that none waits for another. Never uses the group that
training uses: an asynchronous save beside the loop's all-reduce hangs there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from stream_pretrain import errors
from stream_pretrain.errors import CheckpointError, StorageError, StreamPretrainError
from stream_pretrain.schema import World

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """An exception that can cross to another rank: name of its class, message, reason of a StorageError."""

    rank: int
    kind: str
    message: str
    reason: str = "other"

    @classmethod
    def of(cls, error: Exception, rank: int) -> _Failure:
        reason = error.reason if isinstance(error, StorageError) else "other"
        text = (
            str(error)
            if isinstance(error, StreamPretrainError)
            else f"{type(error).__name__}: {error}"
        )
        return cls(rank=rank, kind=type(error).__name__, message=text, reason=reason)

    def revive(self) -> StreamPretrainError:
        """The error as it is raised on ranks where it did not happen."""
        text = f"rank {self.rank}: {self.message}"
        kind = getattr(errors, self.kind, None)
        if kind is StorageError:
            return StorageError(text, self.reason)
        if isinstance(kind, type) and issubclass(kind, StreamPretrainError):
            return kind(text)
        return CheckpointError(text)


class Peers:
    """Collectives over small Python objects, with errors. All ranks make the same calls in the same order."""

    def __init__(self, world: World, group: dist.ProcessGroup | None) -> None:
        assert world.world_size == 1 or group is not None, "several ranks need a group for saving"
        self.world = world
        self._group = group

    def every(self, action: Callable[[], T]) -> list[T]:
        """Run on each rank; all results in rank order on the leader, an empty list elsewhere."""
        result, error = _attempt(action)
        if self._group is None:
            if error is not None:
                raise error
            return [result]  # type: ignore[list-item]
        mine = _Failure.of(error, self.world.rank) if error is not None else result
        gathered: list[Any] | None = (
            [None] * self.world.world_size if self.world.is_leader else None
        )
        dist.gather_object(mine, gathered, dst=0, group=self._group)
        failures = [entry for entry in gathered or () if isinstance(entry, _Failure)]
        self._raise_first(self._broadcast(failures), error)
        return list(gathered or ())

    def leader(self, action: Callable[[], T]) -> T:
        """Run on rank 0 only; its result on every rank."""
        if self._group is None:
            return action()
        result, error = _attempt(action) if self.world.is_leader else (None, None)
        failures = [_Failure.of(error, 0)] if error is not None else []
        failures, result = self._broadcast((failures, result))
        self._raise_first(failures, error)
        return result  # type: ignore[return-value]

    def scatter(self, values: Sequence[T] | None) -> T:
        """Rank 0's values, one to each rank."""
        if self._group is None:
            assert values is not None and len(values) == 1
            return values[0]
        received: list[Any] = [None]
        dist.scatter_object_list(
            received, list(values) if values else None, src=0, group=self._group
        )
        value: T = received[0]
        return value

    def _broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def _raise_first(self, failures: Sequence[_Failure], own: Exception | None) -> None:
        if own is not None:
            raise own
        if failures:
            raise failures[0].revive()


def _attempt(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return action(), None
    except Exception as error:  # whatever it is, the other ranks must hear of it
        return None, error
