"""Paths are synced to the disk, and the cache directory follows the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stream_pretrain.system.paths import sync_path, user_cache_dir


def test_files_and_directories_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", fsync)
    file = tmp_path / "file"
    file.write_bytes(b"x")
    sync_path(file)
    sync_path(tmp_path)
    assert synced == [str(file), str(tmp_path)]
    with pytest.raises(FileNotFoundError):
        sync_path(tmp_path / "absent")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert user_cache_dir() == Path.home() / ".cache/stream-pretrain"
