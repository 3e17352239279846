"""Ranks of one save or load, talking. In: a gloo group of their own (None for one process). Out:
agreed results.

Whatever fails on one rank is raised on all of them, so that none waits for another. Never uses the
group that training uses: an asynchronous save beside the loop's all-reduce hangs there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch.distributed as dist

from stream_pretrain import errors
from stream_pretrain.errors import CheckpointError, StorageError, StreamPretrainError
from stream_pretrain.schema import World

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """An exception that can cross to another rank."""

    rank: int
    kind: str
    message: str
    reason: str

    @classmethod
    def of(cls, error: Exception, rank: int) -> _Failure:
        reason = error.reason if isinstance(error, StorageError) else "other"
        own = isinstance(error, StreamPretrainError)
        text = str(error) if own else f"{type(error).__name__}: {error}"
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


@dataclass(frozen=True, kw_only=True)
class _Outcome(Generic[T]):
    """What an action came to on this rank: a value or an error."""

    value: T | None
    error: Exception | None

    @classmethod
    def of(cls, action: Callable[[], T]) -> _Outcome[T]:
        try:
            return cls(value=action(), error=None)
        except Exception as error:  # whatever it is, the other ranks must hear of it
            return cls(value=None, error=error)

    def unwrap(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class RankGroup:
    """Collectives over small objects, with errors. All ranks make the same calls in one order."""

    def __init__(self, world: World, group: dist.ProcessGroup | None) -> None:
        assert world.world_size == 1 or group is not None, "several ranks need a group for saving"
        self.world = world
        self._group = group if world.world_size > 1 else None

    def all_ranks(self, action: Callable[[], T]) -> list[T]:
        """Run on each rank; all results in rank order on the leader, an empty list elsewhere."""
        outcome = _Outcome.of(action)
        if self._group is None:
            return [outcome.unwrap()]
        error = outcome.error
        mine = outcome.value if error is None else _Failure.of(error, self.world.rank)
        box: list[Any] | None = [None] * self.world.world_size if self.world.is_rank0 else None
        dist.gather_object(mine, box, dst=0, group=self._group)
        failures = [entry for entry in box or () if isinstance(entry, _Failure)]
        self._raise_first(self._broadcast(failures), error)
        return list(box or ())

    def rank0(self, action: Callable[[], T]) -> T:
        """Run on rank 0 only; its result on every rank."""
        if self._group is None:
            return action()
        outcome = _Outcome.of(action) if self.world.is_rank0 else None
        error = outcome.error if outcome is not None else None
        failures = [_Failure.of(error, 0)] if error is not None else []
        failures, value = self._broadcast((failures, outcome.value if outcome else None))
        self._raise_first(failures, error)
        return cast("T", value)

    def scatter(self, action: Callable[[], Sequence[T]]) -> T:
        """Run on rank 0 only; the n-th of its results on rank n."""
        if self._group is None:
            return action()[0]
        hands: list[Any] | None = None
        error = None
        if self.world.is_rank0:
            outcome = _Outcome.of(action)
            error = outcome.error
            failed = _Failure.of(error, 0) if error is not None else None
            hands = [failed] * self.world.world_size if failed else list(outcome.value or ())
        box: list[Any] = [None]
        dist.scatter_object_list(box, hands, src=0, group=self._group)
        self._raise_first([box[0]] if isinstance(box[0], _Failure) else [], error)
        return cast("T", box[0])

    def _broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def _raise_first(self, failures: Sequence[_Failure], own: Exception | None) -> None:
        if own is not None:
            raise own
        if failures:
            raise failures[0].revive()
