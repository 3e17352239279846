"""Exchange small objects and errors between the ranks of one save or restore.

An error on one rank is raised on all of them, so that none waits for another. The collectives run
on a gloo group of their own, never on the group that training uses: an asynchronous save hangs
beside the all-reduce of the training loop (`docs/libraries.md`). A single process needs no group.
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
class _RemoteError:
    """An exception in a form that can be sent to another rank."""

    rank: int
    class_name: str
    message: str
    reason: str

    @classmethod
    def of(cls, error: Exception, rank: int) -> _RemoteError:
        reason = error.reason if isinstance(error, StorageError) else "other"
        is_ours = isinstance(error, StreamPretrainError)
        text = str(error) if is_ours else f"{type(error).__name__}: {error}"
        return cls(rank=rank, class_name=type(error).__name__, message=text, reason=reason)

    def to_exception(self) -> StreamPretrainError:
        """Return the error that is raised on the ranks where it did not happen."""
        text = f"rank {self.rank}: {self.message}"
        error_class = getattr(errors, self.class_name, None)
        if error_class is StorageError:
            return StorageError(text, self.reason)
        if isinstance(error_class, type) and issubclass(error_class, StreamPretrainError):
            return error_class(text)
        return CheckpointError(text)


@dataclass(frozen=True, kw_only=True)
class _Result(Generic[T]):
    """What an action returned or raised on this rank."""

    value: T | None
    error: Exception | None

    @classmethod
    def of(cls, action: Callable[[], T]) -> _Result[T]:
        try:
            return cls(value=action(), error=None)
        except Exception as error:  # sent to the other ranks, whatever it is
            return cls(value=None, error=error)

    def unwrap(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class RankGroup:
    """Collectives over small objects. All ranks make the same calls in the same order.

    An error raised by an action is raised again on its own rank; on the other ranks an error of the
    same class says on which rank it happened.
    """

    def __init__(self, world: World, group: dist.ProcessGroup | None) -> None:
        assert world.world_size == 1 or group is not None, "several ranks need a group for saving"
        self.world = world
        self._group = group if world.world_size > 1 else None

    def all_ranks(self, action: Callable[[], T]) -> list[T]:
        """Run `action` on each rank; rank 0 gets all results in rank order, others get `[]`."""
        result = _Result.of(action)
        if self._group is None:
            return [result.unwrap()]
        error = result.error
        sent = result.value if error is None else _RemoteError.of(error, self.world.rank)
        gathered: list[Any] | None = [None] * self.world.world_size if self.world.is_rank0 else None
        dist.gather_object(sent, gathered, dst=0, group=self._group)
        failures = [entry for entry in gathered or () if isinstance(entry, _RemoteError)]
        self._raise_first(self._broadcast(failures), error)
        return list(gathered or ())

    def rank0(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 only; all ranks get its result."""
        if self._group is None:
            return action()
        result = _Result.of(action) if self.world.is_rank0 else None
        error = result.error if result is not None else None
        failures = [_RemoteError.of(error, 0)] if error is not None else []
        failures, value = self._broadcast((failures, result.value if result else None))
        self._raise_first(failures, error)
        return cast("T", value)

    def scatter(self, action: Callable[[], Sequence[T]]) -> T:
        """Run `action` on rank 0 only; rank n gets the n-th element of its result."""
        if self._group is None:
            return action()[0]
        sent: list[Any] | None = None
        error = None
        if self.world.is_rank0:
            result = _Result.of(action)
            error = result.error
            failure = _RemoteError.of(error, 0) if error is not None else None
            sent = [failure] * self.world.world_size if failure else list(result.value or ())
        received: list[Any] = [None]
        dist.scatter_object_list(received, sent, src=0, group=self._group)
        self._raise_first([received[0]] if isinstance(received[0], _RemoteError) else [], error)
        return cast("T", received[0])

    def _broadcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        objects = [value]
        dist.broadcast_object_list(objects, src=0, group=self._group)
        return objects[0]

    def _raise_first(self, failures: Sequence[_RemoteError], own: Exception | None) -> None:
        """Raise this rank's own error, else the first failure of another rank, if there is any."""
        if own is not None:
            raise own
        if failures:
            raise failures[0].to_exception()
