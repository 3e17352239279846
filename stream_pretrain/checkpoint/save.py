"""Save, find and restore the checkpoints of one run: the interface for the training loop.

A save copies model, optimizers and state to host memory while the loop waits. Then, in the
background, it writes the files under a temporary name, syncs them, adds the receipt and publishes
them in the run directory. When to save is decided elsewhere.
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
from stream_pretrain.checkpoint.background_save import BackgroundSave, not_saved
from stream_pretrain.checkpoint.checkpoint_dir import CheckpointDir
from stream_pretrain.checkpoint.host_buffers import HostBuffers
from stream_pretrain.checkpoint.publish import Publisher
from stream_pretrain.checkpoint.rank_group import RankGroup
from stream_pretrain.checkpoint.search import CheckpointRef, CheckpointSearch, Resume
from stream_pretrain.checkpoint.snapshot import Snapshot
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.errors import OwnerError, StreamPretrainError
from stream_pretrain.schema import World
from stream_pretrain.storage.hashing import xxh64_of
from stream_pretrain.storage.store import Store, open_store

if TYPE_CHECKING:
    from stream_pretrain.config.sections import CheckpointConfig

__all__ = ["CheckpointRef", "Checkpoints", "Resume"]


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)


@dataclass(kw_only=True, eq=False)
class Checkpoints:
    """Finds, restores and saves the checkpoints of one run.

    All ranks make the same calls in the same order. `run` is the run directory; `staging`, a local
    directory, is used when that is a bucket. `group` is a gloo group of all ranks that nothing else
    uses. Files below `extras` are copied into every checkpoint. `before_receipt` runs on rank 0, in
    a thread, before a receipt is written: it flushes the metrics and confirms the lease; for a
    bucket it runs twice per save. `seed` sets the random generators after a change of world size.
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
    longest_save_s: float = 0.0
    """Longest time so far from the start of a save to its receipt."""
    saved_step: int | None = None
    """Step of the newest checkpoint that is whole in the run directory (not only in staging)."""
    _started_step: int | None = None
    _optimizers: list[Optimizer] = field(init=False)
    _publisher: Publisher = field(init=False)
    _search: CheckpointSearch = field(init=False)
    _background: BackgroundSave = field(init=False)
    _buffers: HostBuffers = field(default_factory=HostBuffers)

    def __post_init__(self) -> None:
        optimizer = self.optimizer
        self._optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        disk = self.run.location if self.run.is_local else str(self.staging)
        self._background = BackgroundSave(self.run.url(), disk)
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
            shards = snapshot.expected_shards(self.model, self._optimizers, self.world)
            self._buffers.prepare(shards)

    def _staging_of_run(self) -> Path:
        """Return this run's part of the staging directory, which several runs may share."""
        return self.staging / xxh64_of(self.run.location.encode())

    # ---- finding and restoring

    def find(self, resume: Resume, *, at_most: int | None = None) -> CheckpointRef | None:
        """Return the checkpoint to resume from, verified; None when the run has none.

        `auto` means the newest whole one not beyond step `at_most`; a damaged one is skipped with a
        warning that names the file. A number means the checkpoint of that step.

        Raises:
            CheckpointError: the step asked for is missing or damaged, or `resume` is `never` and
                the run has checkpoints.
        """
        self.wait()
        return self._search.find(resume, at_most=at_most)

    def state_of(self, checkpoint: CheckpointRef) -> TrainState:
        """Return the state in a checkpoint, to compare it with the configuration first."""
        return self._publisher.ranks.rank0(
            lambda: restore.load_state(checkpoint.directory, checkpoint.receipt)
        )

    def restore(self, checkpoint: CheckpointRef) -> TrainState:
        """Fill model, optimizers and random generators in place, and return the state.

        This also works while training (a rewind). The checkpoints beyond this step are superseded
        by the next save. A checkpoint that only staging has is uploaded in the background.
        """
        self.wait()
        self._publisher.ranks.all_ranks(lambda: self._load(checkpoint))
        self._started_step = checkpoint.step
        self._publisher.rewind_to(checkpoint.step)
        if checkpoint.published:
            self.saved_step = checkpoint.step
        else:
            self._background.start(checkpoint.step, lambda: self._upload_staged(checkpoint))
        return restore.load_state(checkpoint.directory, checkpoint.receipt)

    def _load(self, checkpoint: CheckpointRef) -> None:
        restore.load_state(checkpoint.directory, checkpoint.receipt)
        restore.load_tensors(checkpoint.directory, self.model, self._optimizers)
        restore.load_rng(checkpoint.directory, checkpoint.receipt, self.world, self.seed)

    def _upload_staged(self, checkpoint: CheckpointRef) -> None:
        stamps = checkpoint.receipt.files if self.world.is_rank0 else ()
        self._publisher.upload(checkpoint.receipt, stamps)
        self.saved_step = checkpoint.step

    # ---- saving

    def save(self, state: TrainState) -> float:
        """Save this step unless it has been or is being saved; return the seconds the loop waited.

        An error of the previous save (of this one, when saves are synchronous) is raised or becomes
        a warning, as `checkpoint.on_failure` says.
        """
        if state.step == self._started_step:
            return 0.0
        started = time.monotonic()
        self._finish_previous()
        save_started = time.monotonic()
        buffers = self._buffers if self.config.asynchronous else None
        copied = snapshot.take_snapshot(
            self.model, self._optimizers, state, world=self.world, buffers=buffers
        )
        self._started_step = state.step
        self._background.start(state.step, lambda: self._publish(copied, save_started))
        if not self.config.asynchronous:
            self._finish_previous()
        return time.monotonic() - started

    def wait(self) -> None:
        """Wait for the running save; raise its error."""
        error = self._background.finish()
        for message in self._publisher.warnings:
            self.warn(message)
        self._publisher.warnings.clear()
        if error is not None:
            failed_step, self._started_step = self._started_step, self.saved_step
            raise not_saved(error, failed_step, self.saved_step)

    def close(self) -> None:
        """Wait for the running save and release the buffers."""
        try:
            self.wait()
        finally:
            self._buffers.free()

    def _finish_previous(self) -> None:
        try:
            self.wait()
        except OwnerError:
            raise
        except StreamPretrainError as error:
            if self.config.on_failure == "stop":
                raise
            self.warn(f"training goes on without that checkpoint: {error}")

    def _publish(self, copied: Snapshot, save_started: float) -> None:
        self._publisher.publish(copied)
        self.saved_step = copied.step
        self.longest_save_s = max(self.longest_save_s, time.monotonic() - save_started)
