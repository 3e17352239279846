"""Find the checkpoint to resume from, verify it, and fetch it to the local disk.

Sizes are always compared with the receipt, and hashes too unless `checkpoint.verify` is `sizes`. A
checkpoint in a bucket is fetched to staging file by file; a file that is there and matches is not
fetched again. No model is changed here.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from stream_pretrain.checkpoint.candidates import Damage, first_whole, is_damage, steps_to_try
from stream_pretrain.checkpoint.checkpoint_dir import CheckpointDir
from stream_pretrain.checkpoint.layout import IDENTITY_NAME, Receipt, step_name
from stream_pretrain.checkpoint.rank_group import RankGroup
from stream_pretrain.errors import CheckpointError, StorageError
from stream_pretrain.schema import RECEIPT_NAME, FileStamp
from stream_pretrain.storage.hashing import xxh3_128_of

Resume: TypeAlias = "Literal['auto', 'never'] | int"
PARALLEL_FETCHES = 4


@dataclass(frozen=True, kw_only=True)
class CheckpointRef:
    """A verified checkpoint, whose files are below `directory` on every node.

    `published` is False when only the local staging has it, and not the run's bucket.
    """

    step: int
    directory: Path
    receipt: Receipt
    published: bool = True


@dataclass(frozen=True, kw_only=True)
class CheckpointSearch:
    """Searches the run directory and, for a bucket used from one node, the local staging too."""

    run: CheckpointDir
    staging: CheckpointDir | None
    ranks: RankGroup
    hashes: bool
    warn: Callable[[str], None]

    def find(self, resume: Resume, *, at_most: int | None = None) -> CheckpointRef | None:
        """Return the newest whole checkpoint not beyond `at_most`, or that of the given step."""
        self.ranks.rank0(self._clear_stale_staging)
        if self.ranks.world.nodes > 1 and self.run.store.is_local:
            self._require_shared_directory()
        candidates = self.ranks.rank0(lambda: self._candidates(resume))
        return first_whole(
            [step for step in candidates if at_most is None or step <= at_most],
            self._verified,
            exact=isinstance(resume, int),
            report=self._report_damage,
        )

    def _report_damage(self, step: int, error: Damage) -> None:
        if self.ranks.world.is_rank0:
            self.warn(f"the checkpoint of step {step} is skipped: {error}")

    def _clear_stale_staging(self) -> None:
        if self.staging is not None:
            clear_stale_staging(self.run, self.staging, self.warn)

    def _candidates(self, resume: Resume) -> list[int]:
        """Return the steps to try, in order."""
        staged = self._staged()
        steps = sorted({*self.run.steps(), *(staged.steps() if staged is not None else ())})
        if resume == "never":
            if steps:
                raise CheckpointError(
                    f"{self.run.store.url()}: has checkpoints up to step {steps[-1]}, and "
                    "run.resume is never. Set run.resume to auto, or choose another run.dir."
                )
            return []
        return steps_to_try(
            steps,
            None if resume == "auto" else resume,
            url=self.run.store.url(),
            advice="Set run.resume to one of these or to auto.",
        )

    def _verified(self, step: int) -> CheckpointRef:
        """Verify one checkpoint and fetch it to every node's disk."""
        if self.run.store.is_local:
            receipt = self.ranks.rank0(lambda: self.run.check(step, hashes=self.hashes))
            directory = self.run.store.path / step_name(step)
            return CheckpointRef(step=step, directory=directory, receipt=receipt)
        assert self.staging is not None
        directory = self.staging.store.path / step_name(step)
        published = self.ranks.rank0(lambda: self._published_receipt(step))
        staged = self.ranks.rank0(lambda: self._staged_receipt(step, published))
        if staged is not None:
            return CheckpointRef(
                step=step, directory=directory, receipt=staged, published=published is not None
            )
        if published is None:
            raise CheckpointError(f"{directory}: is damaged. Use another checkpoint.")
        self.ranks.all_ranks(lambda: self._fetch(directory, published))
        return CheckpointRef(step=step, directory=directory, receipt=published)

    def _published_receipt(self, step: int) -> Receipt | None:
        """Return the bucket's receipt after comparing sizes; None when the bucket has none."""
        if self.run.store.head(self.run.key(step, RECEIPT_NAME)) is None:
            return None
        try:
            return self.run.check(step, hashes=False)
        except (CheckpointError, StorageError) as error:
            staged = self._staged()
            if not is_damage(error) or staged is None or step not in staged.steps():
                raise
            self.warn(f"the published checkpoint of step {step} is not used: {error}")
            return None

    def _staged_receipt(self, step: int, published: Receipt | None) -> Receipt | None:
        """Return staging's receipt if its copy is whole and matches the published checkpoint."""
        staged = self._staged()
        if staged is None or step not in staged.steps():
            return None
        try:
            receipt = staged.check(step, hashes=self.hashes)
        except CheckpointError as error:
            self.warn(f"the staged checkpoint of step {step} is not used: {error}")
            return None
        return receipt if published in (None, receipt) else None

    def _staged(self) -> CheckpointDir | None:
        """Return staging if it counts as a source: with several nodes only the bucket does."""
        return self.staging if self.ranks.world.nodes == 1 else None

    def _fetch(self, directory: Path, receipt: Receipt) -> None:
        """Download a checkpoint from the bucket to this node, and remove stray files."""
        if self.ranks.world.local_rank != 0:
            return
        names = {stamp.name for stamp in receipt.files}
        for path in sorted(directory.rglob("*")) if directory.exists() else []:
            if path.is_file() and path.relative_to(directory).as_posix() not in names:
                path.unlink()
        with ThreadPoolExecutor(PARALLEL_FETCHES) as pool:
            list(pool.map(lambda s: self._fetch_file(directory, receipt.step, s), receipt.files))
        if self._staged() is not None:
            (directory / RECEIPT_NAME).write_text(receipt.to_json())

    def _fetch_file(self, directory: Path, step: int, stamp: FileStamp) -> None:
        path = directory / stamp.name
        same_size = path.is_file() and path.stat().st_size == stamp.size
        if same_size and xxh3_128_of(path) == stamp.xxh3_128:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        hashes = {"xxh3_128": stamp.xxh3_128} if self.hashes else None
        key = self.run.key(step, stamp.name)
        self.run.store.download(key, path, size=stamp.size, hashes=hashes)

    def _require_shared_directory(self) -> None:
        """Raise when a local run directory is not the same one on all nodes."""
        name = f"probe-{uuid.uuid4().hex}"
        store = self.run.store
        name = self.ranks.rank0(lambda: (store.write(name, b"probe"), name)[1])
        try:
            self.ranks.all_ranks(lambda: self._require_visible(name))
        finally:
            self.ranks.rank0(lambda: store.delete(name))

    def _require_visible(self, name: str) -> None:
        if self.run.store.head(name) is None:
            raise CheckpointError(
                f"{self.run.store.url()}: is not the same directory on node "
                f"{self.ranks.world.node_rank} as on node 0. Several nodes need a shared file "
                "system or a bucket for run.dir."
            )


def clear_stale_staging(
    run: CheckpointDir, staging: CheckpointDir, warn: Callable[[str], None]
) -> None:
    """Empty a staging directory that belongs to an earlier run at the same location."""
    identity = _identity(run)
    path = staging.store.path / IDENTITY_NAME
    if path.exists() and path.read_bytes() == identity:
        return
    if staging.steps():
        warn(
            f"{staging.store.url()}: belongs to an earlier run at {run.store.url()}, which no "
            "longer exists there. Its staged checkpoints are removed."
        )
    if staging.store.path.exists():
        shutil.rmtree(staging.store.path)
    staging.store.write(IDENTITY_NAME, identity)


def _identity(run: CheckpointDir) -> bytes:
    """Return the content of the file that tells this run from earlier ones at its location.

    The file is written by the first process that asks for it.
    """
    if run.store.head(IDENTITY_NAME) is None:
        identity = f'{{"run": "{uuid.uuid4().hex}"}}\n'.encode()
        try:
            run.store.write(IDENTITY_NAME, identity, create_only=True)
        except StorageError as error:
            if error.reason != "conflict":
                raise
    return run.store.read(IDENTITY_NAME)
