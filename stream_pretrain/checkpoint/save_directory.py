"""Write the files of one save on a local disk, and rename the directory when it is complete.

A save is written to `.saving-<step>.<process token>` and renamed when every byte is synced.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from stream_pretrain.checkpoint.layout import DELETING_PREFIX, SAVING_PREFIX, step_name
from stream_pretrain.checkpoint.process_identity import token_is_alive
from stream_pretrain.errors import StorageError
from stream_pretrain.system.paths import sync_path

FOREIGN_SAVE_SECONDS = 3600.0


def create(directory: Path, parts: Iterable[str]) -> None:
    """Make an empty directory for a save in progress, with one subdirectory for each part."""
    shutil.rmtree(directory, ignore_errors=True)
    for part in parts:
        (directory / part).mkdir(parents=True)


def saving_path(checkpoints: Path, step: int, process_token: str) -> Path:
    """Return the directory to which a process writes a save in progress."""
    return checkpoints / f"{SAVING_PREFIX}{step_name(step)}.{process_token}"


def require_space(directory: Path, needed_bytes: int) -> None:
    """Raise `StorageError` "full" when a save of `needed_bytes` does not fit."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise StorageError(
            f"{directory}: {needed_bytes} bytes are needed for a checkpoint, {free_bytes} are "
            "free. Free some space, lower checkpoint.keep_last, or set checkpoint.staging to "
            "another disk.",
            "full",
        )


def remove_leftovers(checkpoints: Path) -> None:
    """Remove what saves and removals of dead processes left behind.

    The save of a living process is kept, as is one of another machine that was written to within
    the last hour.
    """
    for path in sorted(checkpoints.glob(".*")):
        if path.name.startswith(DELETING_PREFIX):
            dead = True
        elif path.name.startswith(SAVING_PREFIX):
            alive = token_is_alive(path.name.rpartition(".")[2])
            recent = time.time() - path.stat().st_mtime < FOREIGN_SAVE_SECONDS
            dead = not (recent if alive is None else alive)
        else:
            continue
        if dead:
            shutil.rmtree(path, ignore_errors=True)


def write_file(path: Path, data: bytes) -> None:
    """Write and sync one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def copy_tree(source: Path, target: Path) -> list[Path]:
    """Copy the files below `source` and sync them; return the new paths."""
    copied = []
    for path in sorted(source.rglob("*")):
        if path.is_file():
            copied.append(target / path.relative_to(source))
            write_file(copied[-1], path.read_bytes())
    return copied


def commit(directory: Path, step: int) -> None:
    """Rename a finished save to its final name, and remove what had that name before."""
    for subdirectory in [path for path in directory.rglob("*") if path.is_dir()]:
        sync_path(subdirectory)
    sync_path(directory)
    final = directory.parent / step_name(step)
    if final.exists():
        _remove(final)
    directory.rename(final)
    sync_path(directory.parent)


def _remove(directory: Path) -> None:
    """Rename a directory, then delete it: a kill half-way leaves nothing under the old name."""
    renamed = directory.parent / f"{DELETING_PREFIX}{directory.name}.{os.getpid()}"
    shutil.rmtree(renamed, ignore_errors=True)
    directory.rename(renamed)
    sync_path(directory.parent)
    shutil.rmtree(renamed)
