"""Files of one save on a local disk. In: a directory of checkpoints. Out: a synced directory under its final name.

A save is written below `.saving-<step>.<owner>` and renamed when every byte is synced. Does not write receipts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stream_pretrain.checkpoint.layout import DELETING_PREFIX, SAVING_PREFIX, step_name


def begin(directory: Path, step: int, owner: str) -> Path:
    """A fresh directory for a save in progress."""
    place = directory / f"{SAVING_PREFIX}{step_name(step)}.{owner}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


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
        sync_directory(directory)
    sync_directory(place)
    final = place.parent / step_name(step)
    if final.exists():
        discard(final)
    place.rename(final)
    sync_directory(place.parent)
    return final


def discard(directory: Path) -> None:
    """Remove a directory so that a kill half-way leaves nothing under its old name."""
    doomed = directory.parent / f"{DELETING_PREFIX}{directory.name}.{os.getpid()}"
    shutil.rmtree(doomed, ignore_errors=True)
    directory.rename(doomed)
    sync_directory(directory.parent)
    shutil.rmtree(doomed)


def sync_directory(directory: Path) -> None:
    """Make names in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
