"""Read the model's tensors and the training state from a checkpoint, for export and audits.

No process group, model or optimizer is needed. From a bucket only the model's files are fetched.
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

PARALLEL_FETCHES = 4
T = TypeVar("T")


def read_model_state(
    run: Store, step: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the model's tensors by name and the training state as plain values.

    Tied tensors share a storage. The checkpoint is that of `step`, or the newest whole one. Sizes
    and hashes are checked.

    Raises:
        CheckpointError: there is none, or the one asked for is damaged.
    """
    checkpoint_dir = CheckpointDir(run)

    def read(receipt: Receipt) -> tuple[dict[str, Tensor], dict[str, Any]]:
        with _model_files(checkpoint_dir, receipt) as directory:
            return _read_tensors(directory), asdict(restore.load_state(directory, receipt))

    return _read_newest(checkpoint_dir, step, read, hashes=run.is_local)


def read_state(run: Store, step: int | None = None) -> TrainState:
    """Return the training state of `step`, or of the newest whole checkpoint; read no tensor.

    Raises:
        CheckpointError: there is none, or the one asked for is damaged.
    """
    checkpoint_dir = CheckpointDir(run)
    return _read_newest(checkpoint_dir, step, checkpoint_dir.state, hashes=False)


def read_model_files(run: Store, step: int, names: tuple[str, ...], into: Path) -> list[Path]:
    """Copy files of a checkpoint (tokenizer, model configuration) to `into`, and check them.

    `names` are files or directories. Return the paths of the copies.
    """
    checkpoint_dir = CheckpointDir(run)
    receipt = checkpoint_dir.receipt(step)
    stamps = [
        stamp
        for stamp in receipt.files
        if any(stamp.name == name or stamp.name.startswith(f"{name}/") for name in names)
    ]
    return _fetch(checkpoint_dir, step, stamps, into)


def _read_newest(
    checkpoint_dir: CheckpointDir, step: int | None, read: Callable[[Receipt], T], *, hashes: bool
) -> T:
    """Return what `read` returns for the newest whole checkpoint, or for that of `step`."""
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
    """Yield a local directory that holds the model's files of a checkpoint."""
    if checkpoint_dir.store.is_local:
        yield checkpoint_dir.store.path / step_name(receipt.step)
        return
    stamps = [
        stamp
        for stamp in receipt.files
        if stamp.name.startswith(f"{MODEL_DIR}/") or stamp.name in (STATE_NAME, TENSORS_NAME)
    ]
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as directory:
        _fetch(checkpoint_dir, receipt.step, stamps, Path(directory))
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

    with ThreadPoolExecutor(PARALLEL_FETCHES) as pool:
        return list(pool.map(fetch, stamps))


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    metadata = dcp.tensor_metadata(dcp.read_index(directory / MODEL_DIR))
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.items()
    }
    dcp.read_into(directory / MODEL_DIR, tensors)
    for name, first in restore.read_tensors_json(directory)["tied"].items():
        tensors[name] = tensors[first]
    return tensors
