"""`Checkpoints`: what the training loop sees. In: state, model, optimizers. Out: checkpoints, and a restored run.

A save is: copy to host memory (the loop waits) -> files under a temporary name, synced -> rename -> receipt.
Does not decide when to save.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from stream_pretrain.checkpoint import disk, restore, rng
from stream_pretrain.checkpoint.dcp import PartWriter
from stream_pretrain.checkpoint.host import HostBuffers
from stream_pretrain.checkpoint.layout import (
    MODEL_DIR,
    OPTIMIZER_DIR,
    STATE_NAME,
    TENSORS_NAME,
    Receipt,
    receipt_of,
    rng_name,
    step_name,
)
from stream_pretrain.checkpoint.peers import Peers
from stream_pretrain.checkpoint.restore import Found
from stream_pretrain.checkpoint.shelf import Shelf
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.checkpoint.tensors import collect, group_settings
from stream_pretrain.schema import FileStamp, World
from stream_pretrain.storage.hashing import stamp_of
from stream_pretrain.storage.store import Store

if TYPE_CHECKING:
    from stream_pretrain.config.sections import CheckpointConfig

Resume = Literal["auto", "never"] | int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One moment of a run on one rank: live tensors (for their layout), host copies (their values), the rest as bytes."""

    step: int
    data_step: int
    digest: str
    live: Mapping[str, Mapping[str, Tensor]]
    host: Mapping[str, Mapping[str, Tensor]]
    rng: bytes
    documents: Mapping[str, bytes]


class Checkpoints:
    """Finds, restores and saves the checkpoints of one run. All ranks make the same calls in the same order."""

    def __init__(
        self,
        *,
        run: Store,
        staging: Path,
        config: CheckpointConfig,
        world: World,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        group: dist.ProcessGroup | None = None,
        extras: Path | None = None,
        before_receipt: Callable[[], None] = lambda: None,
        seed: int = 0,
    ) -> None:
        self._config = config
        self._world = world
        self._model = model
        self._optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self._extras = extras
        self._before_receipt = before_receipt
        self._seed = seed
        self._staging = staging
        self._peers = Peers(world, group)
        self._shelf = Shelf(run)
        self._buffers = HostBuffers()
        self._saved_step: int | None = None

    # ---- finding and restoring

    def find(self, resume: Resume) -> Found | None:
        """The checkpoint to start from, verified; None where there is none (or `resume` is "never")."""
        return self._peers.leader(lambda: self._find(resume))

    def _find(self, resume: Resume) -> Found | None:
        hashes = self._config.verify == "hashes"
        if resume == "never":
            return None
        if resume == "auto":
            receipt, _ = restore.newest_whole(self._shelf, hashes=hashes)
        else:
            receipt = restore.exactly(self._shelf, resume, hashes=hashes)
        if receipt is None:
            return None
        return Found(step=receipt.step, place=self._shelf.store.url(), receipt=receipt)

    def restore(self, found: Found) -> TrainState:
        """Fill model, optimizers and random generators from a checkpoint; the state that goes with them."""
        directory = self._shelf.store.path / step_name(found.step)
        states = self._peers.every(lambda: self._restore(directory, found))
        self._saved_step = found.step
        del states
        return restore.load_state(directory, found.receipt)

    def _restore(self, directory: Path, found: Found) -> None:
        restore.load_state(directory, found.receipt)
        restore.load_tensors(directory, self._model, self._optimizers)
        restore.load_rng(directory, found.receipt, self._world, self._seed)

    # ---- saving

    def save(self, state: TrainState) -> float:
        """Save this step unless it is saved; seconds for which the loop stood still."""
        if state.step == self._saved_step:
            return 0.0
        started = time.monotonic()
        snapshot = self._snapshot(state)
        self._write(snapshot)
        self._saved_step = state.step
        return time.monotonic() - started

    def wait(self) -> None:
        """Return when no save is under way; raises what went wrong."""

    def close(self) -> None:
        """Finish what is under way and free the buffers."""
        self.wait()
        self._buffers.keep(())

    def _snapshot(self, state: TrainState) -> Snapshot:
        tensors = collect(self._model, self._optimizers)
        live = {MODEL_DIR: tensors.model, OPTIMIZER_DIR: tensors.optimizer}
        host = {
            part: self._buffers.copy({f"{part}/{name}": t for name, t in values.items()})
            for part, values in live.items()
        }
        notes = {
            "tied": dict(tensors.tied),
            "scalars": dict(tensors.scalars),
            "groups": group_settings(self._optimizers),
        }
        return Snapshot(
            step=state.step,
            data_step=state.data_step,
            digest=state.digest,
            live=live,
            host={p: {n.partition("/")[2]: t for n, t in v.items()} for p, v in host.items()},
            rng=rng.capture(),
            documents={
                STATE_NAME: state.to_json().encode(),
                TENSORS_NAME: (json.dumps(notes, indent=2, sort_keys=True) + "\n").encode(),
            },
        )

    def _write(self, snapshot: Snapshot) -> None:
        directory = self._shelf.store.path
        place = self._peers.leader(lambda: disk.begin(directory, snapshot.step, f"{os.getpid()}"))
        stamps = self._write_files(place, snapshot)
        self._peers.leader(lambda: self._publish(place, snapshot, stamps))

    def _write_files(self, place: Path, snapshot: Snapshot) -> list[FileStamp]:
        """Write this rank's files and take stamps of all ranks' files (on the leader)."""
        for part in (MODEL_DIR, OPTIMIZER_DIR):
            writer = PartWriter(snapshot.live[part], snapshot.host[part])
            self._peers.every(lambda: (place / part).mkdir(exist_ok=True))  # noqa: B023
            plans = self._peers.every(
                lambda: writer.local_plan(place / part, is_leader=self._world.is_leader)  # noqa: B023
            )
            agreed = self._peers.leader(lambda: writer.global_plan(plans))  # noqa: B023
            results = self._peers.every(lambda: writer.write(agreed[self._world.rank]))  # noqa: B023
            self._peers.leader(lambda: writer.finish(results))  # noqa: B023
        self._peers.every(lambda: disk.write_file(place / rng_name(self._world.rank), snapshot.rng))
        return self._peers.leader(lambda: self._write_documents(place, snapshot))

    def _write_documents(self, place: Path, snapshot: Snapshot) -> list[FileStamp]:
        for name, data in snapshot.documents.items():
            disk.write_file(place / name, data)
        if self._extras is not None:
            disk.copy_tree(self._extras, place)
        files = sorted(path for path in place.rglob("*") if path.is_file())
        return [stamp_of(path, name=path.relative_to(place).as_posix()) for path in files]

    def _publish(self, place: Path, snapshot: Snapshot, stamps: list[FileStamp]) -> None:
        receipt = self._receipt(snapshot, stamps)
        disk.commit(place, snapshot.step)
        self._before_receipt()
        self._shelf.write_receipt(receipt)

    def _receipt(self, snapshot: Snapshot, stamps: list[FileStamp]) -> Receipt:
        return receipt_of(
            step=snapshot.step,
            data_step=snapshot.data_step,
            digest=snapshot.digest,
            world_size=self._world.world_size,
            created=time.time(),
            stamps=stamps,
        )
