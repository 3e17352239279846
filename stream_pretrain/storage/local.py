"""A directory as a store. In: keys. Out: files, written whole (temporary name, fsync, rename).

Uses no bucket client.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.failures import storage_error
from stream_pretrain.storage.hashing import blocks
from stream_pretrain.storage.retry import OnRetry
from stream_pretrain.storage.store import Infos, Names, ObjectInfo, Store
from stream_pretrain.storage.transfer import TEMPORARY_SUFFIX, write_whole
from stream_pretrain.system.file_lock import directory_lock


class LocalStore(Store):
    """Objects are files below `path`. Conditional writes hold a lock on the object's directory."""

    def head(self, key: str) -> ObjectInfo | None:
        """See `Store.head`; a directory is not an object."""
        with self._failures(key):
            file = self._file(key)
            return _info(file, key) if file.is_file() else None

    def read(self, key: str) -> bytes:
        """See `Store.read`."""
        with self._failures(key):
            return self._file(key).read_bytes()

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store.read_range`."""
        with self._failures(key), self._file(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def open_stream(self, key: str) -> BinaryIO:
        """See `Store.open_stream`."""
        with self._failures(key):
            return self._file(key).open("rb")

    def write(
        self, key: str, data: bytes, *, create_only: bool = False, if_match: str | None = None
    ) -> str:
        """See `Store.write`."""
        with self._failures(key):
            file = self._file(key)
            file.parent.mkdir(parents=True, exist_ok=True)
            if create_only:
                write_whole([data], file, place=self.url(key), fsync=True, publish=os.link)
                return _info(file, key).etag
            if if_match is None:
                write_whole([data], file, place=self.url(key), fsync=True)
                return _info(file, key).etag
            with directory_lock(file.parent):
                self._expect(file, key, if_match)
                write_whole([data], file, place=self.url(key), fsync=True)
                return _info(file, key).etag

    def list(self, prefix: str = "") -> Infos:
        """See `Store.list`; temporary files are no objects."""
        with self._failures(prefix):
            top = self._file(prefix)
            found = [
                _info(Path(directory, name), os.path.relpath(Path(directory, name), self.path))
                for directory, _, names in os.walk(top, onerror=_raise_unless_absent)
                for name in names
                if not name.endswith(TEMPORARY_SUFFIX)
            ]
            return sorted(found, key=lambda info: info.key)

    def list_dirs(self, prefix: str = "") -> Names:
        """See `Store.list_dirs`."""
        with self._failures(prefix):
            top = self._file(prefix)
            return (
                sorted(entry.name for entry in top.iterdir() if entry.is_dir())
                if top.exists()
                else []
            )

    def download(
        self,
        key: str,
        path: Path,
        *,
        size: int | None = None,
        hashes: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        on_retry: OnRetry | None = None,
    ) -> int:
        """See `Store.download`; a local copy is not tried again."""
        del deadline_s, on_retry
        with self._failures(key), self._file(key).open("rb") as file:
            return write_whole(blocks(file), path, place=self.url(key), size=size, hashes=hashes)

    def upload(self, path: Path, key: str) -> ObjectInfo:
        """See `Store.upload`."""
        with self._failures(key):
            target = self._file(key)
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                write_whole(blocks(file), target, place=self.url(key), size=size, fsync=True)
            return _info(target, key)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        with self._failures(key):
            self._file(key).unlink(missing_ok=True)

    def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        with self._failures(prefix):
            count = len(self.list(prefix))
            if self._file(prefix).is_dir():
                shutil.rmtree(self._file(prefix))
            return count

    def _file(self, key: str) -> Path:
        parts = Path(key)
        if parts.is_absolute() or ".." in parts.parts:
            raise StorageError(f"{self.location}: a key must stay below its store, got {key!r}.")
        return self.path / key

    def _expect(self, file: Path, key: str, etag: str) -> None:
        found = _info(file, key).etag if file.exists() else "absent"
        if found != etag:
            raise StorageError(
                f"{self.url(key)}: was changed by another (expected {etag}).", "conflict"
            )

    @contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(error, self.url(key)) from error


def _info(file: Path, key: str) -> ObjectInfo:
    stat = file.stat()
    etag = f"{stat.st_mtime_ns:x}-{stat.st_size:x}-{stat.st_ino:x}"
    return ObjectInfo(key=key, size=stat.st_size, etag=etag, modified=stat.st_mtime)


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
