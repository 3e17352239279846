"""Model tensors of a checkpoint, for export and generation. In: a run directory. Out: whole tensors
by name, and the training state. Needs no process group, no model and no optimizer; of a bucket it
fetches the model's files alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from stream_pretrain.checkpoint import dcp, restore
from stream_pretrain.checkpoint.candidates import first_whole, steps_to_try
from stream_pretrain.checkpoint.checkpoint_dir import CheckpointDir
from stream_pretrain.checkpoint.layout import (
    MODEL_DIR,
    STATE_NAME,
    TENSORS_NAME,
    Receipt,
    step_name,
)
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.errors import CheckpointError
from stream_pretrain.schema import FileStamp
from stream_pretrain.storage.store import Store

FETCHES_AT_ONCE = 4
T = TypeVar("T")


def read_model_state(
    run: Store, step: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of the model by name (tied ones share a storage) and the state as plain values.

    `step` None takes the newest checkpoint that is whole. Sizes and hashes are checked.

    Raises:
        CheckpointError: there is none, or the one asked for is damaged.
    """
    checkpoint_dir = CheckpointDir(run)

    def read(receipt: Receipt) -> tuple[dict[str, Tensor], dict[str, Any]]:
        with _model_files(checkpoint_dir, receipt) as directory:
            return _read(directory), asdict(restore.load_state(directory, receipt))

    return _read_newest(checkpoint_dir, step, read, hashes=run.is_local)


def read_state(run: Store, step: int | None = None) -> TrainState:
    """The training state of the newest whole checkpoint, or of `step`; no tensor is read.

    Raises:
        CheckpointError: there is none, or the one asked for is damaged.
    """
    checkpoint_dir = CheckpointDir(run)
    return _read_newest(checkpoint_dir, step, checkpoint_dir.state, hashes=False)


def read_model_files(run: Store, step: int, names: tuple[str, ...], into: Path) -> list[Path]:
    """Copy files that travel with a checkpoint (tokenizer, model configuration), checked.

    `names` are files or directories; the paths of the copies.
    """
    checkpoint_dir = CheckpointDir(run)
    receipt = checkpoint_dir.receipt(step)
    chosen = [
        stamp
        for stamp in receipt.files
        if any(stamp.name == name or stamp.name.startswith(f"{name}/") for name in names)
    ]
    return _fetch(checkpoint_dir, step, chosen, into)


def _read_newest(
    checkpoint_dir: CheckpointDir, step: int | None, read: Callable[[Receipt], T], *, hashes: bool
) -> T:
    """What `read` makes of the newest checkpoint that is whole, or of exactly the one asked for."""
    url = checkpoint_dir.store.url()
    steps = checkpoint_dir.steps()
    candidates = steps_to_try(steps, step, url=url, advice="Choose one of these.")
    if not candidates:
        raise CheckpointError(f"{url}: no checkpoint. Train first: stream-pretrain fit")
    damage: list[Exception] = []
    whole = first_whole(
        candidates,
        lambda candidate: read(checkpoint_dir.check(candidate, hashes=hashes)),
        exact=step is not None,
        report=lambda _, error: damage.append(error),
    )
    if whole is None:
        raise CheckpointError(f"{url}: no checkpoint is whole ({damage[-1]}).")
    return whole


@contextmanager
def _model_files(checkpoint_dir: CheckpointDir, receipt: Receipt) -> Iterator[Path]:
    """A directory that holds the model's part of a checkpoint."""
    if checkpoint_dir.store.is_local:
        yield checkpoint_dir.store.path / step_name(receipt.step)
        return
    wanted = [
        stamp
        for stamp in receipt.files
        if stamp.name.startswith(f"{MODEL_DIR}/") or stamp.name in (STATE_NAME, TENSORS_NAME)
    ]
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as directory:
        _fetch(checkpoint_dir, receipt.step, wanted, Path(directory))
        yield Path(directory)


def _fetch(
    checkpoint_dir: CheckpointDir, step: int, stamps: list[FileStamp], into: Path
) -> list[Path]:
    def fetch(stamp: FileStamp) -> Path:
        path = into / stamp.name
        path.parent.mkdir(parents=True, exist_ok=True)
        hashes = {"xxh3_128": stamp.xxh3_128}
        checkpoint_dir.store.download(
            checkpoint_dir.key(step, stamp.name), path, size=stamp.size, hashes=hashes
        )
        return path

    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        return list(pool.map(fetch, stamps))


def _read(directory: Path) -> dict[str, Tensor]:
    facts = dcp.tensor_facts(dcp.read_index(directory / MODEL_DIR))
    tensors = {
        name: torch.empty(fact.size, dtype=fact.properties.dtype) for name, fact in facts.items()
    }
    dcp.read_into(directory / MODEL_DIR, tensors)
    for name, first in restore.read_notes(directory)["tied"].items():
        tensors[name] = tensors[first]
    return tensors
