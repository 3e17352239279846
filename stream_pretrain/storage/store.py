"""Open a path or URL as a `Store`: named objects in a local directory or a bucket.

A store holds only its location and settings, so it pickles; a bucket's client is made on first use
in the process that uses it. Every failure is a `StorageError` with a reason. What the objects hold
is not interpreted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from stream_pretrain.storage.location import Location, parse_location
from stream_pretrain.storage.retry import OnRetry, RetryPolicy

if TYPE_CHECKING:
    from stream_pretrain.config.sections import StorageConfig


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """One stored object.

    `key` is relative to its store, `size` in bytes, `modified` in seconds since 1970.
    """

    key: str
    size: int
    etag: str
    modified: float


Infos: TypeAlias = "list[ObjectInfo]"  # `Store.list` hides the builtin inside the classes
Names: TypeAlias = "list[str]"


class Store(ABC):
    """Named objects below one location. Keys are relative, with `/` as separator."""

    def __init__(self, location: Location, config: StorageConfig) -> None:
        self.parsed_location = location
        self.config = config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    @property
    def location(self) -> str:
        """The path or URL of this store."""
        return self.parsed_location.url()

    @property
    def is_local(self) -> bool:
        """True for a directory on this machine."""
        return self.parsed_location.is_local

    @property
    def path(self) -> Path:
        """The directory of a local store."""
        assert self.is_local, f"{self.location} has no local path"
        return Path(self.parsed_location.prefix)

    def url(self, key: str = "") -> str:
        """Return the path or URL of an object, for messages; it never holds credentials."""
        return self.parsed_location.url(key)

    def child(self, prefix: str) -> Store:
        """Return the store of the objects below `prefix`."""
        return type(self)(self.parsed_location.child(prefix), self.config)

    @property
    def policy(self) -> RetryPolicy:
        """How often this store retries, and for how long."""
        return RetryPolicy(attempts=self.config.retries, deadline_s=self.config.deadline)

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """Return an object's size, etag and time, or None when it does not exist."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Return all bytes of an object."""

    @abstractmethod
    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on (fewer at the object's end)."""

    @abstractmethod
    def open_stream(self, key: str) -> BinaryIO:
        """Return a reader from front to back in constant memory.

        It resumes where a broken connection stopped.
        """

    @abstractmethod
    def write(
        self, key: str, data: bytes, *, create_only: bool = False, if_match: str | None = None
    ) -> str:
        """Write an object atomically; return its etag.

        Raises:
            StorageError: with the reason "conflict" when the object exists (`create_only`) or its
                etag is not `if_match`.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> Infos:
        """Return all objects below the directory `prefix`, sorted by key."""

    @abstractmethod
    def list_dirs(self, prefix: str = "") -> Names:
        """Return the names of the directories directly below `prefix`, sorted."""

    @abstractmethod
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
        """Fetch an object to `path` atomically; return its size in bytes.

        The file is written under a temporary name, checked against `size` and `hashes` (algorithm
        -> hex digest), then renamed. `deadline_s` bounds all attempts together.
        """

    @abstractmethod
    def upload(self, path: Path, key: str) -> ObjectInfo:
        """Upload a file of any size, and check that the stored object has the file's size."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; nothing happens when it does not exist."""

    @abstractmethod
    def delete_prefix(self, prefix: str) -> int:
        """Remove every object below the directory `prefix`; return their number."""


def open_store(location: str | Path, config: StorageConfig | None = None) -> Store:
    """Return the store at a path or URL; nothing is connected to.

    Raises:
        StorageError: the location cannot be parsed.
    """
    parsed = parse_location(location)
    settings = config if config is not None else default_config()
    if parsed.is_local:
        from stream_pretrain.storage.local import LocalStore

        return LocalStore(parsed, settings)
    from stream_pretrain.storage.bucket import BucketStore

    return BucketStore(parsed, settings)


def default_config() -> StorageConfig:
    """Return the `storage` section with every default."""
    from stream_pretrain.config.sections import StorageConfig

    return StorageConfig()
