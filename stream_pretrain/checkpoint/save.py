"""`Checkpoints`: what the training loop sees. In: state, model, optimizers. Out: checkpoints, and a
restored run.

A save is: copy to host memory (the loop waits) -> files under a temporary name, synced -> receipt
-> in the run directory. Does not decide when to save.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from stream_pretrain.checkpoint import restore, snapshot
from stream_pretrain.checkpoint.background import Background
from stream_pretrain.checkpoint.checkpoint_dir import CheckpointDir
from stream_pretrain.checkpoint.host_buffers import HostBuffers
from stream_pretrain.checkpoint.publish import Publisher
from stream_pretrain.checkpoint.rank_group import RankGroup
from stream_pretrain.checkpoint.search import CheckpointRef, CheckpointSearch, Resume
from stream_pretrain.checkpoint.snapshot import Snapshot
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.errors import (
    CheckpointError,
    OwnerError,
    StorageError,
    StreamPretrainError,
)
from stream_pretrain.schema import World
from stream_pretrain.storage.failures import storage_error
from stream_pretrain.storage.hashing import xxh64_of
from stream_pretrain.storage.store import Store, open_store

if TYPE_CHECKING:
    from stream_pretrain.config.sections import CheckpointConfig

__all__ = ["CheckpointRef", "Checkpoints", "Resume"]


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)


@dataclass(kw_only=True, eq=False)
class Checkpoints:
    """Finds, restores and saves the checkpoints of one run; all ranks make the same calls in order.

    `run` is the run directory; `staging` is used when that is a bucket. `group` is a gloo group of
    all ranks that nothing else uses. Files below `extras` go into every checkpoint.
    `before_receipt` runs on rank 0, in a thread, before a receipt is written: it makes the metrics
    safe and confirms the lease; for a bucket it runs twice a save. `seed` sets random generators
    after a change of world size.
    """

    run: Store
    staging: Path
    config: CheckpointConfig
    world: World
    model: nn.Module
    optimizer: Optimizer | Sequence[Optimizer]
    group: dist.ProcessGroup | None = None
    extras: Path | None = None
    before_receipt: Callable[[], None] = lambda: None
    seed: int = 0
    warn: Callable[[str], None] = _warn
    seconds_per_save: float = 0.0
    """Longest time from the start of a save to its receipt, so far."""
    saved_step: int | None = None
    """Step of the newest checkpoint that is whole in the run directory (not only in staging)."""
    _started_step: int | None = None
    _optimizers: list[Optimizer] = field(init=False)
    _publisher: Publisher = field(init=False)
    _search: CheckpointSearch = field(init=False)
    _background: Background = field(default_factory=Background)
    _buffers: HostBuffers = field(default_factory=HostBuffers)

    def __post_init__(self) -> None:
        given = self.optimizer
        self._optimizers = [given] if isinstance(given, Optimizer) else list(given)
        ranks = RankGroup(self.world, self.group)
        run = CheckpointDir(self.run)
        staging = None if self.run.is_local else CheckpointDir(open_store(self._staging_of_run()))
        self._publisher = Publisher(
            run=run,
            staging=staging,
            ranks=ranks,
            config=self.config,
            extras=self.extras,
            before_receipt=self.before_receipt,
        )
        self._search = CheckpointSearch(
            run=run,
            staging=staging,
            ranks=ranks,
            hashes=self.config.verify == "hashes",
            warn=lambda message: self.warn(message),
        )
        if self.config.asynchronous:
            expected = snapshot.expected_shards(self.model, self._optimizers, self.world)
            self._buffers.prepare(expected)

    def _staging_of_run(self) -> Path:
        """Runs that share a staging directory do not share checkpoints."""
        return self.staging / xxh64_of(self.run.location.encode())

    # ---- finding and restoring

    def find(self, resume: Resume, *, at_most: int | None = None) -> CheckpointRef | None:
        """The checkpoint to go on from, verified; None when the run has none.

        `auto` takes the newest whole one (not beyond `at_most`), passing over damaged ones with a
        warning that names the file; a step takes that one or raises `CheckpointError`; `never`
        raises it when there is any.
        """
        self.wait()
        return self._search.find(resume, at_most=at_most)

    def state_of(self, found: CheckpointRef) -> TrainState:
        """The state in a checkpoint, to be compared with the configuration before `restore`."""
        return self._publisher.ranks.rank0(
            lambda: restore.load_state(found.directory, found.receipt)
        )

    def restore(self, found: CheckpointRef) -> TrainState:
        """Fill model, optimizers and random generators in place; the state that goes with them.

        Also while training (a rewind). The checkpoints beyond this step are given up with the next
        save. One that only staging has is published in the background.
        """
        self.wait()
        self._publisher.ranks.all_ranks(lambda: self._fill_from(found))
        self._started_step = found.step
        self._publisher.rewind_to(found.step)
        if found.published:
            self.saved_step = found.step
        else:
            self._background.start(lambda: self._guarded(found.step, self._publish_staged(found)))
        return restore.load_state(found.directory, found.receipt)

    def _fill_from(self, found: CheckpointRef) -> None:
        restore.load_state(found.directory, found.receipt)
        restore.load_tensors(found.directory, self.model, self._optimizers)
        restore.load_rng(found.directory, found.receipt, self.world, self.seed)

    def _publish_staged(self, found: CheckpointRef) -> Callable[[], None]:
        own = found.receipt.files if self.world.is_rank0 else ()
        return lambda: self._publisher.upload(found.receipt, own)

    # ---- saving

    def save(self, state: TrainState) -> float:
        """Save this step unless that was done or is under way; seconds that the loop stood still.

        Raises what went wrong with the save before (a synchronous one: with this one), or warns, as
        `checkpoint.on_failure` says.
        """
        if state.step == self._started_step:
            return 0.0
        started = time.monotonic()
        self._settle()
        begun = time.monotonic()
        buffers = self._buffers if self.config.asynchronous else None
        taken = snapshot.take_snapshot(
            self.model, self._optimizers, state, world=self.world, buffers=buffers
        )
        self._started_step = state.step
        self._background.start(lambda: self._publish(taken, begun))
        if not self.config.asynchronous:
            self._settle()
        return time.monotonic() - started

    def wait(self) -> None:
        """Return when no save is under way; raises what went wrong with the last one."""
        error = self._background.finish()
        for notice in self._publisher.notices:
            self.warn(notice)
        self._publisher.notices.clear()
        if error is not None:
            failed, self._started_step = self._started_step, self.saved_step
            raise self._named(error, failed)

    def _named(self, error: Exception, step: int | None) -> Exception:
        """The same kind of error, saying which checkpoint was not saved and which one there is."""
        whole = "none yet" if self.saved_step is None else f"of step {self.saved_step}"
        text = (
            f"the checkpoint of step {step} was not saved; the last whole one is {whole}. {error}"
        )
        if isinstance(error, StorageError):
            return StorageError(text, error.reason).with_traceback(error.__traceback__)
        if type(error) is CheckpointError:
            return CheckpointError(text).with_traceback(error.__traceback__)
        return error

    def close(self) -> None:
        """Finish what is under way and give the buffers back."""
        try:
            self.wait()
        finally:
            self._buffers.free()

    def _settle(self) -> None:
        try:
            self.wait()
        except OwnerError:
            raise
        except StreamPretrainError as error:
            if self.config.on_failure == "stop":
                raise
            self.warn(f"training goes on without that checkpoint: {error}")

    def _publish(self, taken: Snapshot, begun: float) -> None:
        self._guarded(taken.step, lambda: self._publisher.publish(taken))
        self.seconds_per_save = max(self.seconds_per_save, time.monotonic() - begun)

    def _guarded(self, step: int, work: Callable[[], object]) -> None:
        """Run in the background; whatever goes wrong says which save it was."""
        try:
            work()
        except StreamPretrainError:
            raise
        except OSError as error:
            place = self.run.location if self.run.is_local else str(self.staging)
            raise storage_error(error, place, f"saving step {step}") from error
        except Exception as error:
            raise CheckpointError(
                f"{self.run.url()}: saving step {step} failed "
                f"({type(error).__name__}: {error}). The checkpoint before it is untouched."
            ) from error
        self.saved_step = step
