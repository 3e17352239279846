"""One small reduction a step. In: this rank's stop votes and digest sum. Out: those of all ranks
together.

An int64 vector is summed on a gloo group of its own, started before the forward and read after the
backward, so the host does not wait for the device and a signal on any one rank is heard by all in
the same step. int64 addition wraps, which is what the digest's sum modulo 2**64 needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from stream_pretrain.schema import World


@dataclass(frozen=True, kw_only=True)
class StepTotals:
    """What all ranks said in a step: how many voted to stop for each reason, and the wrapped int64
    sum.
    """

    signal_votes: int
    time_up_votes: int
    digest_sum: int
    stream_samples: tuple[int, ...]


class StepSync:
    """The reduction. `start` and `finish` are called once a step, in turn, on every rank."""

    def __init__(self, world: World) -> None:
        self._group = _gloo_group() if world.world_size > 1 else None
        self._vector = torch.zeros(0, dtype=torch.int64)
        self._work: dist.Work | None = None

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The gloo group, for other small agreements between steps; `None` in a single process."""
        return self._group

    def start(
        self, *, signal: bool, time_up: bool, digest_sum: int, stream_samples: tuple[int, ...]
    ) -> None:
        """Begin to add up; `digest_sum` is signed."""
        self._vector = torch.tensor(
            [int(signal), int(time_up), digest_sum, *stream_samples], dtype=torch.int64
        )
        if self._group is not None:
            self._work = dist.all_reduce(self._vector, group=self._group, async_op=True)

    def finish(self) -> StepTotals:
        """Wait for the sum and return it."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        signal, time_up, digest_sum, *stream_samples = self._vector.tolist()
        return StepTotals(
            signal_votes=signal,
            time_up_votes=time_up,
            digest_sum=digest_sum,
            stream_samples=tuple(stream_samples),
        )

    def agree(self, wish: bool) -> bool:
        """True on every rank if any rank wishes it."""
        if self._group is None:
            return wish
        vector = torch.tensor([int(wish)], dtype=torch.int64)
        dist.all_reduce(vector, group=self._group)
        return bool(vector.item())

    def new_group(self) -> dist.ProcessGroup | None:
        """Another gloo group over all ranks, for work beside the loop; made by all ranks at the
        same point.
        """
        return None if self._group is None else _gloo_group()

    def rank0_first(self, world: World, action: Callable[[], None]) -> None:
        """Run on rank 0. Where it fails there, the error is raised on rank 0 and the others leave
        quietly.
        """
        failure: Exception | None = None
        if world.is_rank0:
            try:
                action()
            except Exception as error:
                failure = error
        failed = self.agree(failure is not None)
        if failure is not None:
            raise failure
        if failed:
            raise SystemExit(0)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self._group is not None:
            dist.barrier(group=self._group)


def _gloo_group() -> dist.ProcessGroup:
    """A group of all ranks on the CPU."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group
