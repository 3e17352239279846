"""An endless row of micro-batches in epochs. In: a dataset and where to begin. Out: `take(n)`.

Counts nothing else.

There is no iterator to cycle. Before every epoch the native state is computed from the step, loaded
into the dataset,
and the dataset makes that epoch's order afresh from its shuffle seed; a start in mid-epoch is the
first case of the
same path. Each epoch must give exactly the planned number of steps, or the run stops.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from typing import Any

import torch
from torch.utils.data import DataLoader

from stream_pretrain.data.batch import Batch, collate
from stream_pretrain.data.sample_order.position import DataPosition, EpochClock
from stream_pretrain.errors import DataError, ShardError
from stream_pretrain.runtime.stop import signals_held_back

WORKER_PRELOAD = (
    "torch",
    "streaming",
    "stream_pretrain.data.reading.shard_dataset",
    "stream_pretrain.data.batch",
)


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """How batches are fetched; none of it changes which samples come in which step."""

    micro_batch: int
    micro_steps: int
    workers: int = 0
    pin_memory: bool = False
    prefetch_batches: int = 4
    timeout_s: float = 0.0


class EpochStream:
    """Micro-batches of this rank, in the order of the plan, from `phase_step` of a phase on."""

    def __init__(
        self, dataset: Any, clock: EpochClock, settings: LoaderSettings, phase_step: int
    ) -> None:
        self._dataset = dataset
        self._clock = clock
        self._settings = settings
        self._phase_step = phase_step
        self._loader = _loader(dataset, settings)
        self._epoch: Iterator[Batch] | None = None
        self.wait_s = 0.0

    @property
    def position(self) -> DataPosition:
        """Where the next step will be taken from."""
        return self._clock.position(self._phase_step)

    def next_batches(self, count: int) -> list[Batch]:
        """The micro-batches of one step; opens the next epoch when the last one has ended.

        Raises:
            DataError: the epoch ended before the planned number of steps.
        """
        begun = time.perf_counter()
        if self._epoch is None:
            self._epoch = self._open_epoch()
        batches = [self._next(self._epoch) for _ in range(count)]
        self._phase_step += 1
        if self.position.sample_in_epoch == 0:
            self._finish_epoch(self._epoch)
        self.wait_s = time.perf_counter() - begun
        return batches

    def skip(self, steps: int) -> None:
        """Leave out the next `steps` global batches;

        they are counted and not read where an epoch allows it.
        """
        self.seek(self._phase_step + steps)

    def seek(self, phase_step: int) -> None:
        """Continue from another step of the phase, forwards or backwards."""
        self.close_epoch()
        self._phase_step = phase_step

    def close_epoch(self) -> None:
        """Drop the running epoch with its workers."""
        if self._epoch is not None:
            self._epoch = None
            self._loader = _loader(self._dataset, self._settings)

    def _open_epoch(self) -> Iterator[Batch]:
        position = self.position
        # A state of an earlier epoch than the dataset's next is ignored as stale, so that is set as
        # well.
        self._dataset.next_epoch = position.epoch
        self._dataset.load_state_dict(position.native())
        return iter(self._loader)

    def _next(self, epoch: Iterator[Batch]) -> Batch:
        try:
            return next(epoch)
        except ShardError as error:
            # The loader puts a worker's traceback before the message; the dataset keeps the message
            # itself.
            raise ShardError(self._dataset.failure() or str(error)) from None
        except (RuntimeError, EOFError, OSError) as error:
            if not self._settings.workers or not _is_death_of_worker(error):
                raise
            raise DataError(
                f"A data worker died ({type(error).__name__}: {error}). It was probably killed "
                f"for want of memory: "
                "lower data.workers, or give the job more."
            ) from error
        except StopIteration:
            position = self.position
            raise DataError(
                f"Epoch {position.epoch} ended at sample {position.sample_in_epoch}, the plan has "
                f"{self._clock.steps_per_epoch} steps of {self._clock.global_batch}. The streams "
                "changed while the run went on; run: stream-pretrain verify RUN"
            ) from None

    def _finish_epoch(self, epoch: Iterator[Batch]) -> None:
        left = next(epoch, None)
        self._epoch = None
        if left is not None:
            raise DataError(
                f"Epoch {self.position.epoch - 1} holds more than the planned "
                f"{self._clock.steps_per_epoch} steps of {self._clock.global_batch}."
            )


def _is_death_of_worker(error: Exception) -> bool:
    """A batch cannot be taken over from a worker that is gone, or the loader noticed that it is."""
    text = str(error)
    return not isinstance(error, RuntimeError) or (
        text.startswith("DataLoader worker") and "Caught" not in text
    )


def _loader(dataset: Any, settings: LoaderSettings) -> DataLoader[Batch]:
    """A DataLoader whose workers come from a fork server that never used a bucket client
    (TRAPS C).
    """
    workers = settings.workers
    options: dict[str, Any] = {}
    if workers:
        from stream_pretrain.data.dataloader_worker import start_worker

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(WORKER_PRELOAD))
        with signals_held_back():
            resource_tracker.ensure_running()
            forkserver.ensure_running()
        options = {
            "multiprocessing_context": context,
            "persistent_workers": True,
            "prefetch_factor": settings.prefetch_batches,
            "worker_init_fn": start_worker,
            "timeout": settings.timeout_s,
        }
    return DataLoader(
        dataset,
        batch_size=settings.micro_batch,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=settings.pin_memory,
        drop_last=True,
        # Without its own generator a loader draws from the global one at every epoch, and a resumed
        # run would
        # stand elsewhere in that sequence.
        generator=torch.Generator().manual_seed(0),
        **options,
    )
