"""Files of one save on a local disk. In: a directory of checkpoints. Out: a synced directory under
its final name.

A save is written below `.saving-<step>.<owner>` and renamed when every byte is synced. Does not
write receipts.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from stream_pretrain.checkpoint.layout import DELETING_PREFIX, SAVING_PREFIX, step_name
from stream_pretrain.checkpoint.process import token_is_alive
from stream_pretrain.errors import StorageError
from stream_pretrain.system.paths import sync_path

FOREIGN_SAVE_SECONDS = 3600.0


def begin(place: Path, parts: Iterable[str]) -> None:
    """A fresh directory for a save in progress, with one directory for each part."""
    shutil.rmtree(place, ignore_errors=True)
    for part in parts:
        (place / part).mkdir(parents=True)


def saving_place(directory: Path, step: int, owner: str) -> Path:
    """Where a save of `owner` (a process token) is written."""
    return directory / f"{SAVING_PREFIX}{step_name(step)}.{owner}"


def require_space(directory: Path, needed: int) -> None:
    """`StorageError` "full" when a save of `needed` bytes cannot fit."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise StorageError(
            f"{directory}: {needed} bytes are needed for a checkpoint, {free} are free. "
            "Free some, lower checkpoint.keep_last, or set checkpoint.staging to another disk.",
            "full",
        )


def clean_leftovers(directory: Path) -> list[str]:
    """Remove what dead saves and deletions left behind; the names that were removed.

    A save of a living process is left alone, as is one of another machine that was written to
    within the last hour.
    """
    removed = []
    for path in sorted(directory.glob(".*")):
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
            removed.append(path.name)
    return removed


def write_file(path: Path, data: bytes) -> None:
    """Write and sync one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def copy_tree(source: Path, target: Path) -> list[Path]:
    """Copy the files below `source`, synced; their new paths."""
    copied = []
    for path in sorted(source.rglob("*")):
        if path.is_file():
            copied.append(target / path.relative_to(source))
            write_file(copied[-1], path.read_bytes())
    return copied


def commit(place: Path, step: int) -> Path:
    """Give a finished save its final name, in place of whatever had it."""
    for directory in [path for path in place.rglob("*") if path.is_dir()]:
        sync_path(directory)
    sync_path(place)
    final = place.parent / step_name(step)
    if final.exists():
        discard(final)
    place.rename(final)
    sync_path(place.parent)
    return final


def discard(directory: Path) -> None:
    """Remove a directory so that a kill half-way leaves nothing under its old name."""
    doomed = directory.parent / f"{DELETING_PREFIX}{directory.name}.{os.getpid()}"
    shutil.rmtree(doomed, ignore_errors=True)
    directory.rename(doomed)
    sync_path(directory.parent)
    shutil.rmtree(doomed)
