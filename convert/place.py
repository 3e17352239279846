"""Local output directory behind the same verbs as a bucket. In: a path. Out: atomic writes, reads, listings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """A directory addressed by keys."""

    path: Path

    def read(self, key: str) -> bytes:
        return (self.path / key).read_bytes()

    def size(self, key: str) -> int | None:
        try:
            return (self.path / key).stat().st_size
        except FileNotFoundError:
            return None

    def write(self, key: str, data: bytes) -> None:
        target = self.path / key
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        with staged.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(target)

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(
            str(path.relative_to(self.path))
            for path in (self.path / prefix).rglob("*")
            if path.is_file()
        )

    def delete_prefix(self, prefix: str) -> None:
        import shutil

        shutil.rmtree(self.path / prefix, ignore_errors=True)
