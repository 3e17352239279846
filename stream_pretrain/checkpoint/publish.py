"""A snapshot -> a checkpoint that exists. In: a snapshot on every rank. Out: a directory with a
receipt in the run directory, and what must go is gone. Runs behind the loop.

On a local disk: files under a temporary name, synced; receipt; rename. For a bucket: the same in
staging, then every rank uploads what it wrote, and the receipt comes last.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stream_pretrain.checkpoint import save_directory
from stream_pretrain.checkpoint.checkpoint_dir import CheckpointDir
from stream_pretrain.checkpoint.layout import RECEIPT_NAME, Receipt, make_receipt, step_name
from stream_pretrain.checkpoint.process_identity import this_process
from stream_pretrain.checkpoint.rank_group import RankGroup
from stream_pretrain.checkpoint.retention import steps_to_delete
from stream_pretrain.checkpoint.snapshot import Snapshot
from stream_pretrain.checkpoint.write_files import write_files
from stream_pretrain.errors import StorageError
from stream_pretrain.schema import FileStamp

if TYPE_CHECKING:
    from stream_pretrain.config.sections import CheckpointConfig

UPLOADS_AT_ONCE = 4
READ_BACK_BYTES = 1 << 16


@dataclass(kw_only=True)
class Publisher:
    """Writes checkpoints of one run. All ranks call the same methods in the same order.

    `notices` collects what deserves a warning but fails no save.
    """

    run: CheckpointDir
    staging: CheckpointDir | None
    ranks: RankGroup
    config: CheckpointConfig
    extras: Path | None
    before_receipt: Callable[[], None]
    notices: list[str] = field(default_factory=list)
    _own: str = field(default_factory=lambda: this_process().token)
    _cleaned: bool = False
    _went_on_from: int = -1
    _futures: list[CheckpointDir] = field(default_factory=list)
    _given_up: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rewind_to(-1)

    def rewind_to(self, step: int) -> None:
        """Training went back to `step` (-1: to nothing). Checkpoints beyond it, damaged ones among
        them, belong to a future that is given up: they are taken out of the line before the next
        receipt, and removed when the new line has passed their step.
        """
        self._went_on_from = step
        self._futures = [self.run] if self.staging is None else [self.run, self.staging]

    def publish(self, snapshot: Snapshot) -> Receipt:
        """Make the checkpoint exist in the run directory; its receipt."""
        owner = self.ranks.rank0(lambda: self._own)
        place = save_directory.saving_path(
            (self.staging or self.run).store.path, snapshot.step, owner
        )
        try:
            self.ranks.all_ranks(lambda: self._begin(place, snapshot))
            written = write_files(place, snapshot, ranks=self.ranks, extras=self.extras)
            receipt = self.ranks.rank0(lambda: self._receipt(snapshot, written.everybody))
            if self.staging is None:
                self.ranks.rank0(lambda: self._commit_run(place, receipt))
            else:
                self.ranks.all_ranks(lambda: self._commit_staging(place, receipt))
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        if self.staging is not None:
            self.upload(receipt, written.own)
        self.ranks.all_ranks(lambda: self._tidy(receipt.step, snapshot.best))
        return receipt

    def upload(self, receipt: Receipt, own: Iterable[FileStamp]) -> None:
        """Bring a staged checkpoint to the bucket: `own` are the files of this rank."""
        assert self.staging is not None
        directory = self.staging.store.path / step_name(receipt.step)
        self.ranks.rank0(lambda: self.run.remove(receipt.step))
        self.ranks.all_ranks(lambda: self._send(directory, receipt.step, list(own)))
        self.ranks.rank0(lambda: self._commit_bucket(receipt))

    # ---- the steps of a save

    def _begin(self, place: Path, snapshot: Snapshot) -> None:
        local_leader = self.ranks.world.local_rank == 0
        if self.ranks.world.is_rank0 or (self.staging is not None and local_leader):
            size = sum(t.nbytes for part in snapshot.host.values() for t in part.values())
            ranks = self.ranks.world
            count = ranks.world_size if self.staging is None else ranks.local_world_size
            save_directory.begin(place, snapshot.live)
            save_directory.require_space(place, size * count)

    def _receipt(self, snapshot: Snapshot, stamps: Iterable[FileStamp]) -> Receipt:
        return make_receipt(
            step=snapshot.step,
            data_step=snapshot.data_step,
            digest=snapshot.digest,
            world_size=self.ranks.world.world_size,
            created=time.time(),
            stamps=stamps,
        )

    def _commit_run(self, place: Path, receipt: Receipt) -> None:
        self.before_receipt()
        self._give_up_future(self.run, receipt.step)
        save_directory.write_file(place / RECEIPT_NAME, receipt.to_json().encode())
        save_directory.commit(place, receipt.step)

    def _commit_staging(self, place: Path, receipt: Receipt) -> None:
        """On one node staging is a tier of its own; on several only a cache of files."""
        assert self.staging is not None
        if self.ranks.world.local_rank != 0:
            return
        if self.ranks.world.nodes == 1:
            try:
                self.before_receipt()
            except StorageError as error:
                self.notices.append(f"before the staged receipt of step {receipt.step}: {error}")
            self._give_up_future(self.staging, receipt.step)
            save_directory.write_file(place / RECEIPT_NAME, receipt.to_json().encode())
        save_directory.commit(place, receipt.step)
        try:
            self._retain(self.staging, receipt.step, None)  # a bucket that is down fills no disk
        except StorageError as error:
            self.notices.append(f"old staged checkpoints could not be removed: {error}")

    def _commit_bucket(self, receipt: Receipt) -> None:
        self.before_receipt()
        self._give_up_future(self.run, receipt.step)
        self.run.check_sizes(receipt)
        self.run.write_receipt(receipt)

    def _give_up_future(self, checkpoint_dir: CheckpointDir, step: int) -> None:
        """Newest first: what a kill leaves is then still one line."""
        self._given_up.discard(step)
        if checkpoint_dir not in self._futures:
            return
        for later in reversed(checkpoint_dir.steps()):
            if later > self._went_on_from and later != step:
                checkpoint_dir.supersede(later)
                self._given_up.add(later)
        self._futures.remove(checkpoint_dir)

    def _send(self, directory: Path, step: int, stamps: list[FileStamp]) -> None:
        with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
            list(pool.map(lambda stamp: self._send_file(directory, step, stamp), stamps))

    def _send_file(self, directory: Path, step: int, stamp: FileStamp) -> None:
        """Upload one file and read parts of it back."""
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
                        "The save is given up; the next one sends it again.",
                        "damaged",
                    )

    # ---- what must go

    def _tidy(self, step: int, best: int | None) -> None:
        """Retention and leftovers; what cannot be removed fails no save."""
        try:
            if self.ranks.world.is_rank0:
                self._tidy_run(step, best)
            if self.staging is not None and self.ranks.world.local_rank == 0:
                save_directory.clean_leftovers(self.staging.store.path)
                for old in self.staging.directories():
                    if old != step:
                        self.staging.remove(old)
        except (StorageError, OSError) as error:
            self.notices.append(f"old checkpoints could not be removed: {error}")

    def _tidy_run(self, step: int, best: int | None) -> None:
        self._retain(self.run, step, best)
        if not self._cleaned:  # later leftovers would be this process's own
            self._cleaned = True
            if self.run.store.is_local:
                save_directory.clean_leftovers(self.run.store.path)
            for old in self.run.directories():
                if old != step and self.run.is_superseded(old):
                    self._given_up.add(old)
                elif old != step:
                    self.run.remove_uncommitted(old)
        passed = {old for old in self._given_up if old <= step}
        self._given_up -= passed
        for old in passed - {step}:
            self.run.remove(old)

    def _retain(self, checkpoint_dir: CheckpointDir, step: int, best: int | None) -> None:
        doomed = steps_to_delete(
            checkpoint_dir.steps(),
            keep_last=self.config.keep_last,
            keep_every=self.config.keep_every,
            best=best if self.config.keep_best else None,
            verified=step,
        )
        for old in sorted(doomed):
            checkpoint_dir.remove(old)
