"""Where to start from. In: the run directory, the local staging, a wish. Out: `CheckpointRef`,
verified and on a local disk. Changes no model.

Sizes are always compared with the receipt, hashes unless the policy says otherwise. A checkpoint
of a bucket is fetched to staging file by file; what is there already and agrees is not fetched.
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
from stream_pretrain.checkpoint.layout import IDENTITY_NAME, RECEIPT_NAME, Receipt, step_name
from stream_pretrain.checkpoint.rank_group import RankGroup
from stream_pretrain.errors import CheckpointError, StorageError
from stream_pretrain.schema import FileStamp
from stream_pretrain.storage.hashing import xxh3_128_of

Resume: TypeAlias = "Literal['auto', 'never'] | int"
FETCHES_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class CheckpointRef:
    """A whole checkpoint: its files below `directory` on every node.

    `published` is False when the run's bucket does not have it, only the local staging.
    """

    step: int
    directory: Path
    receipt: Receipt
    published: bool = True


@dataclass(frozen=True, kw_only=True)
class CheckpointSearch:
    """Looks through the run directory and, with a bucket on one node, the staging beside it."""

    run: CheckpointDir
    staging: CheckpointDir | None
    ranks: RankGroup
    hashes: bool
    warn: Callable[[str], None]

    def find(self, resume: Resume, *, at_most: int | None = None) -> CheckpointRef | None:
        """Newest whole checkpoint (not beyond `at_most`), or exactly the step asked for."""
        self.ranks.rank0(self._require_same_run)
        if self.ranks.world.nodes > 1 and self.run.store.is_local:
            self._require_shared()
        candidates = self.ranks.rank0(lambda: self._candidates(resume))
        return first_whole(
            [step for step in candidates if at_most is None or step <= at_most],
            self._take,
            exact=isinstance(resume, int),
            report=self._report_damage,
        )

    def _report_damage(self, step: int, error: Damage) -> None:
        if self.ranks.world.is_rank0:
            self.warn(f"the checkpoint of step {step} is passed over: {error}")

    def _require_same_run(self) -> None:
        if self.staging is not None:
            same_run(self.run, self.staging, self.warn)

    def _candidates(self, resume: Resume) -> list[int]:
        """Steps to try, in order."""
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

    def _take(self, step: int) -> CheckpointRef:
        """One checkpoint, verified, on every node's disk."""
        if self.run.store.is_local:
            receipt = self.ranks.rank0(lambda: self.run.check(step, hashes=self.hashes))
            directory = self.run.store.path / step_name(step)
            return CheckpointRef(step=step, directory=directory, receipt=receipt)
        assert self.staging is not None
        directory = self.staging.store.path / step_name(step)
        published = self.ranks.rank0(lambda: self._published(step))
        local = self.ranks.rank0(lambda: self._staged_whole(step, published))
        if local is not None:
            return CheckpointRef(
                step=step, directory=directory, receipt=local, published=published is not None
            )
        if published is None:
            raise CheckpointError(f"{directory}: damaged. Use another checkpoint.")
        self.ranks.all_ranks(lambda: self._fetch(directory, published))
        return CheckpointRef(step=step, directory=directory, receipt=published)

    def _published(self, step: int) -> Receipt | None:
        """The bucket's receipt, sizes compared; None where it has none."""
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

    def _staged_whole(self, step: int, published: Receipt | None) -> Receipt | None:
        """Staging's receipt, if staging has this checkpoint whole and it is the published one."""
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
        """Staging as a place to start from: on several nodes the bucket alone decides."""
        return self.staging if self.ranks.world.nodes == 1 else None

    def _fetch(self, directory: Path, receipt: Receipt) -> None:
        """Bring a bucket's checkpoint to this node."""
        if self.ranks.world.local_rank != 0:
            return
        wanted = {stamp.name for stamp in receipt.files}
        for path in sorted(directory.rglob("*")) if directory.exists() else []:
            if path.is_file() and path.relative_to(directory).as_posix() not in wanted:
                path.unlink()
        with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
            list(pool.map(lambda s: self._fetch_file(directory, receipt.step, s), receipt.files))
        if self._staged() is not None:
            (directory / RECEIPT_NAME).write_text(receipt.to_json())

    def _fetch_file(self, directory: Path, step: int, stamp: FileStamp) -> None:
        path = directory / stamp.name
        there = path.is_file() and path.stat().st_size == stamp.size
        if there and xxh3_128_of(path) == stamp.xxh3_128:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        hashes = {"xxh3_128": stamp.xxh3_128} if self.hashes else None
        key = self.run.key(step, stamp.name)
        self.run.store.download(key, path, size=stamp.size, hashes=hashes)

    def _require_shared(self) -> None:
        """Refuse a local run directory that the other nodes do not see."""
        name = f"probe-{uuid.uuid4().hex}"
        store = self.run.store
        name = self.ranks.rank0(lambda: (store.write(name, b"probe"), name)[1])
        try:
            self.ranks.all_ranks(lambda: self._see(name))
        finally:
            self.ranks.rank0(lambda: store.delete(name))

    def _see(self, name: str) -> None:
        if self.run.store.head(name) is None:
            raise CheckpointError(
                f"{self.run.store.url()}: is not the same directory on node "
                f"{self.ranks.world.node_rank} as on node 0. Several nodes need a shared file "
                "system or a bucket for run.dir."
            )


def same_run(run: CheckpointDir, staging: CheckpointDir, warn: Callable[[str], None]) -> None:
    """Empty a staging that belongs to an earlier run at the same address."""
    identity = _identity(run)
    place = staging.store.path / IDENTITY_NAME
    if place.exists() and place.read_bytes() == identity:
        return
    if staging.steps():
        warn(
            f"{staging.store.url()}: belongs to an earlier run at {run.store.url()}, which is "
            "gone there; removed."
        )
    if staging.store.path.exists():
        shutil.rmtree(staging.store.path)
    staging.store.write(IDENTITY_NAME, identity)


def _identity(run: CheckpointDir) -> bytes:
    """What names this run among all that ever lived at its address; made by the first who asks."""
    if run.store.head(IDENTITY_NAME) is None:
        made = f'{{"run": "{uuid.uuid4().hex}"}}\n'.encode()
        try:
            run.store.write(IDENTITY_NAME, made, create_only=True)
        except StorageError as error:
            if error.reason != "conflict":
                raise
    return run.store.read(IDENTITY_NAME)
