"""Make paths durable, and find the user's cache directory.

Paths go in; a synced path or a path comes out. Nothing here creates or removes anything.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Flush a file's bytes, or the names in a directory, to the disk: they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache_dir() -> Path:
    """`stream-pretrain` below XDG_CACHE_HOME, or below ~/.cache where that is unset or empty."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stream-pretrain"
