"""A location -> a store of named objects. In: a path or URL and the `storage` section. Out:
`Store`.

A store holds only its location and settings, so it pickles; a bucket's client is made on first use
in the process that uses it. Every failure is a `StorageError` with a reason. Does not interpret
what is stored.
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
    """One stored object: `key` relative to its store, `size` in bytes, `modified` in seconds since
    1970.
    """

    key: str
    size: int
    etag: str
    modified: float


Infos: TypeAlias = "list[ObjectInfo]"  # `Store.list` hides the builtin inside the classes
Names: TypeAlias = "list[str]"


class Store(ABC):
    """Named objects below one location. Keys are relative, with `/` between parts."""

    def __init__(self, place: Location, config: StorageConfig) -> None:
        self.place = place
        self.config = config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    @property
    def location(self) -> str:
        """The path or URL of this store."""
        return self.place.url()

    @property
    def is_local(self) -> bool:
        """True for a directory of this machine."""
        return self.place.is_local

    @property
    def path(self) -> Path:
        """The directory of a local store."""
        assert self.is_local, f"{self.location} has no local path"
        return Path(self.place.prefix)

    def url(self, key: str = "") -> str:
        """Path or URL of an object, for messages: never with credentials."""
        return self.place.url(key)

    def child(self, prefix: str) -> Store:
        """The store below `prefix`."""
        return type(self)(self.place.child(prefix), self.config)

    @property
    def policy(self) -> RetryPolicy:
        """How often and how patiently this store tries again."""
        return RetryPolicy(attempts=self.config.retries, deadline_s=self.config.deadline)

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """Facts about an object, None when there is none."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """All bytes of an object."""

    @abstractmethod
    def read_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` on (fewer at the object's end)."""

    @abstractmethod
    def open_stream(self, key: str) -> BinaryIO:
        """A reader from front to back in constant memory, which goes on where a broken connection
        left off.
        """

    @abstractmethod
    def write(
        self, key: str, data: bytes, *, create_only: bool = False, if_match: str | None = None
    ) -> str:
        """Put an object at once or not at all; its etag.

        `StorageError` "conflict" when the condition fails.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> Infos:
        """All objects below the directory `prefix`, sorted by key."""

    @abstractmethod
    def list_dirs(self, prefix: str = "") -> Names:
        """Names of the directories directly below `prefix`, sorted."""

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
        """Fetch an object to `path` whole or not at all; its size.

        Written under a temporary name, checked against `size` and `hashes` (algorithm -> hex), then
        renamed.
        """

    @abstractmethod
    def upload(self, path: Path, key: str) -> ObjectInfo:
        """Send a file of any size, then ask the store what it holds: size must be the file's."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; nothing happens when there is none."""

    @abstractmethod
    def delete_prefix(self, prefix: str) -> int:
        """Remove every object below the directory `prefix`; how many there were."""


def open_store(location: str | Path, config: StorageConfig | None = None) -> Store:
    """The store at a path or URL; `StorageError` when the location cannot be understood.

    Connects to nothing.
    """
    place = parse_location(location)
    settings = config if config is not None else default_config()
    if place.is_local:
        from stream_pretrain.storage.local import LocalStore

        return LocalStore(place, settings)
    from stream_pretrain.storage.bucket import BucketStore

    return BucketStore(place, settings)


def default_config() -> StorageConfig:
    """The `storage` section with every default."""
    from stream_pretrain.config.sections import StorageConfig

    return StorageConfig()
