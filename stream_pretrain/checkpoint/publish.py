"""Turn a snapshot into a checkpoint in the run directory, and remove old checkpoints.

On a local disk the files are written under a temporary name and synced, then the receipt is added
and the directory renamed. For a bucket the same happens in the staging directory, then every rank
uploads what it wrote, and the receipt is uploaded last. All of this runs in a background thread.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stream_pretrain.checkpoint import save_directory
from stream_pretrain.checkpoint.checkpoint_dir import CheckpointDir
from stream_pretrain.checkpoint.layout import Receipt, make_receipt, step_name
from stream_pretrain.checkpoint.process_identity import this_process
from stream_pretrain.checkpoint.rank_group import RankGroup
from stream_pretrain.checkpoint.snapshot import Snapshot
from stream_pretrain.checkpoint.write_files import write_files
from stream_pretrain.errors import StorageError
from stream_pretrain.schema import RECEIPT_NAME, FileStamp

if TYPE_CHECKING:
    from stream_pretrain.config.sections import CheckpointConfig

PARALLEL_UPLOADS = 4
READ_BACK_BYTES = 1 << 16


def steps_to_delete(
    saved: Collection[int],
    *,
    keep_last: int,
    keep_every: int | None = None,
    best: int | None = None,
    verified: int | None = None,
) -> set[int]:
    """Return the steps among `saved` that no rule keeps.

    Kept are the `keep_last` newest, the multiples of `keep_every`, the `best` one, and the newest
    that is `verified` (known to be whole). `saved` must hold no damaged or uncommitted checkpoint:
    counting those could delete the last good one.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, got {keep_last}")
    kept = set(sorted(saved)[-keep_last:])
    if keep_every is not None:
        kept |= {step for step in saved if step % keep_every == 0}
    kept |= {step for step in (best, verified) if step is not None}
    return set(saved) - kept


@dataclass(kw_only=True)
class Publisher:
    """Writes the checkpoints of one run. All ranks call the same methods in the same order.

    `warnings` collects messages about problems that do not make a save fail.
    """

    run: CheckpointDir
    staging: CheckpointDir | None
    ranks: RankGroup
    config: CheckpointConfig
    extras: Path | None
    before_receipt: Callable[[], None]
    warnings: list[str] = field(default_factory=list)
    _process_token: str = field(default_factory=lambda: this_process().token)
    _leftovers_removed: bool = False
    _rewound_to: int = -1
    _dirs_to_supersede: list[CheckpointDir] = field(default_factory=list)
    _superseded_steps: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rewind_to(-1)

    def rewind_to(self, step: int) -> None:
        """Note that training went back to `step` (-1: it starts from nothing).

        Checkpoints beyond that step, damaged ones among them, are superseded: they are taken out of
        use before the next receipt is written, and removed when training has passed their step
        again.
        """
        self._rewound_to = step
        self._dirs_to_supersede = [self.run] if self.staging is None else [self.run, self.staging]

    def publish(self, snapshot: Snapshot) -> Receipt:
        """Write a checkpoint to the run directory and return its receipt."""
        token = self.ranks.rank0(lambda: self._process_token)
        directory = save_directory.saving_path(
            (self.staging or self.run).store.path, snapshot.step, token
        )
        try:
            self.ranks.all_ranks(lambda: self._create_directory(directory, snapshot))
            written = write_files(directory, snapshot, ranks=self.ranks, extras=self.extras)
            receipt = self.ranks.rank0(lambda: self._receipt(snapshot, written.all_ranks))
            if self.staging is None:
                self.ranks.rank0(lambda: self._commit_run(directory, receipt))
            else:
                self.ranks.all_ranks(lambda: self._commit_staging(directory, receipt))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if self.staging is not None:
            self.upload(receipt, written.this_rank)
        self.ranks.all_ranks(lambda: self._clean_up(receipt.step, snapshot.best))
        return receipt

    def upload(self, receipt: Receipt, stamps: Iterable[FileStamp]) -> None:
        """Upload a staged checkpoint to the bucket; `stamps` are the files of this rank."""
        assert self.staging is not None
        directory = self.staging.store.path / step_name(receipt.step)
        self.ranks.rank0(lambda: self.run.remove(receipt.step))
        self.ranks.all_ranks(lambda: self._upload_files(directory, receipt.step, list(stamps)))
        self.ranks.rank0(lambda: self._commit_bucket(receipt))

    # ---- the steps of a save

    def _create_directory(self, directory: Path, snapshot: Snapshot) -> None:
        world = self.ranks.world
        if world.is_rank0 or (self.staging is not None and world.local_rank == 0):
            size = sum(t.nbytes for part in snapshot.host_copies.values() for t in part.values())
            ranks_on_disk = world.world_size if self.staging is None else world.local_world_size
            save_directory.create(directory, snapshot.tensors)
            save_directory.require_space(directory, size * ranks_on_disk)

    def _receipt(self, snapshot: Snapshot, stamps: Iterable[FileStamp]) -> Receipt:
        return make_receipt(
            step=snapshot.step,
            data_step=snapshot.data_step,
            digest=snapshot.digest,
            world_size=self.ranks.world.world_size,
            created=time.time(),
            stamps=stamps,
        )

    def _commit_run(self, directory: Path, receipt: Receipt) -> None:
        self.before_receipt()
        self._supersede_later(self.run, receipt.step)
        save_directory.write_file(directory / RECEIPT_NAME, receipt.to_json().encode())
        save_directory.commit(directory, receipt.step)

    def _commit_staging(self, directory: Path, receipt: Receipt) -> None:
        """Rename the staged files; with one node they get a receipt and count as a checkpoint."""
        assert self.staging is not None
        if self.ranks.world.local_rank != 0:
            return
        if self.ranks.world.nodes == 1:
            try:
                self.before_receipt()
            except StorageError as error:
                self.warnings.append(f"before the staged receipt of step {receipt.step}: {error}")
            self._supersede_later(self.staging, receipt.step)
            save_directory.write_file(directory / RECEIPT_NAME, receipt.to_json().encode())
        save_directory.commit(directory, receipt.step)
        try:  # here too, so that an unreachable bucket does not fill the disk
            self._apply_retention(self.staging, receipt.step, None)
        except StorageError as error:
            self.warnings.append(f"old staged checkpoints could not be removed: {error}")

    def _commit_bucket(self, receipt: Receipt) -> None:
        self.before_receipt()
        self._supersede_later(self.run, receipt.step)
        self.run.check_sizes(receipt)
        self.run.write_receipt(receipt)

    def _supersede_later(self, checkpoint_dir: CheckpointDir, step: int) -> None:
        """Supersede checkpoints beyond the step that training went back to.

        The newest comes first, so that a kill between two leaves no gap in the old run.
        """
        self._superseded_steps.discard(step)
        if checkpoint_dir not in self._dirs_to_supersede:
            return
        for later in reversed(checkpoint_dir.steps()):
            if later > self._rewound_to and later != step:
                checkpoint_dir.supersede(later)
                self._superseded_steps.add(later)
        self._dirs_to_supersede.remove(checkpoint_dir)

    def _upload_files(self, directory: Path, step: int, stamps: list[FileStamp]) -> None:
        with ThreadPoolExecutor(PARALLEL_UPLOADS) as pool:
            list(pool.map(lambda stamp: self._upload_file(directory, step, stamp), stamps))

    def _upload_file(self, directory: Path, step: int, stamp: FileStamp) -> None:
        """Upload one file and compare the start, the end and a random range of it."""
        path, key = directory / stamp.name, self.run.key(step, stamp.name)
        self.run.store.upload(path, key)
        last = max(0, stamp.size - READ_BACK_BYTES)
        with path.open("rb") as file:
            for start in {0, random.Random(stamp.xxh3_128).randint(0, last), last}:
                file.seek(start)
                expected = file.read(READ_BACK_BYTES)
                if self.run.store.read_range(key, start, len(expected)) != expected:
                    raise StorageError(
                        f"{self.run.store.url(key)}: differs from what was sent at byte {start}. "
                        "This checkpoint gets no receipt; the next save uploads its own files.",
                        "damaged",
                    )

    # ---- removing old checkpoints

    def _clean_up(self, step: int, best: int | None) -> None:
        """Remove old checkpoints and leftovers; a failure here does not make the save fail."""
        try:
            if self.ranks.world.is_rank0:
                self._clean_up_run(step, best)
            if self.staging is not None and self.ranks.world.local_rank == 0:
                save_directory.remove_leftovers(self.staging.store.path)
                for old in self.staging.directories():
                    if old != step:
                        self.staging.remove(old)
        except (StorageError, OSError) as error:
            self.warnings.append(f"old checkpoints could not be removed: {error}")

    def _clean_up_run(self, step: int, best: int | None) -> None:
        self._apply_retention(self.run, step, best)
        if not self._leftovers_removed:  # later ones would be this process's own
            self._leftovers_removed = True
            if self.run.store.is_local:
                save_directory.remove_leftovers(self.run.store.path)
            for old in self.run.directories():
                if old != step and self.run.is_superseded(old):
                    self._superseded_steps.add(old)
                elif old != step:
                    self.run.remove_uncommitted(old)
        passed = {old for old in self._superseded_steps if old <= step}
        self._superseded_steps -= passed
        for old in passed - {step}:
            self.run.remove(old)

    def _apply_retention(self, checkpoint_dir: CheckpointDir, step: int, best: int | None) -> None:
        old_steps = steps_to_delete(
            checkpoint_dir.steps(),
            keep_last=self.config.keep_last,
            keep_every=self.config.keep_every,
            best=best if self.config.keep_best else None,
            verified=step,
        )
        for old in sorted(old_steps):
            checkpoint_dir.remove(old)
