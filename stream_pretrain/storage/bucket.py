"""Implement `Store` for buckets through obstore: S3 and compatible servers, GCS, Azure.

The client is made on first use in each process. Nothing is cached.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, cast

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.clients import Clients
from stream_pretrain.storage.location import Location
from stream_pretrain.storage.reader import ResumingReader
from stream_pretrain.storage.retry import OnRetry, call_with_retries
from stream_pretrain.storage.store import Infos, Names, ObjectInfo, Store
from stream_pretrain.storage.transfer import write_atomic

if TYPE_CHECKING:
    from obstore import PutResult

    from stream_pretrain.config.sections import StorageConfig

T = TypeVar("T")
# Yield whatever has arrived: a larger minimum would hide a slow transfer from the deadline.
CHUNK_BYTES = 1
PART_BYTES = 8 << 20
MAX_PARTS = 9_000
DELETE_BATCH = 1_000


class BucketStore(Store):
    """Objects below `scheme://bucket/prefix`."""

    def __init__(self, location: Location, config: StorageConfig) -> None:
        super().__init__(location, config)
        self._clients = Clients(location, config)

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.parsed_location, "config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["location"], state["config"])  # type: ignore[misc]

    @property
    def _tag(self) -> Literal["e_tag", "version"]:
        """The field that write conditions compare: an etag, or in GCS the object's generation."""
        return "version" if self.parsed_location.scheme == "gs" else "e_tag"

    def head(self, key: str) -> ObjectInfo | None:
        """See `Store.head`."""
        import obstore

        try:
            meta = self._try(lambda: obstore.head(self._clients.get(), self._key(key)), key, "head")
        except StorageError as error:
            if error.reason == "absent":
                return None
            raise
        return self._info(cast("dict[str, Any]", meta))

    def read(self, key: str) -> bytes:
        """See `Store.read`."""
        import obstore

        full = self._key(key)
        return self._try(lambda: bytes(obstore.get(self._clients.get(), full).bytes()), key, "read")

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store.read_range`."""
        import obstore

        full = self._key(key)
        return self._try(
            lambda: bytes(obstore.get_range(self._clients.get(), full, start=start, length=length)),
            key,
            "read",
        )

    def open_stream(self, key: str) -> BinaryIO:
        """See `Store.open_stream`."""
        info = self.head(key)
        if info is None:
            raise StorageError(f"{self.url(key)}: not found.", "absent")
        raw = ResumingReader(
            self._chunks, self._key(key), info, location=self.url(key), policy=self.policy
        )
        return cast(BinaryIO, io.BufferedReader(raw, buffer_size=1 << 20))

    def write(
        self, key: str, data: bytes, *, create_only: bool = False, if_match: str | None = None
    ) -> str:
        """See `Store.write`.

        A conflict with our own earlier attempt, whose response was lost, counts as success.
        """
        import obstore

        mode: Any = "overwrite"
        if create_only:
            mode = "create"
        elif if_match is not None:
            mode = {self._tag: if_match}
        attempts = 0

        def put() -> PutResult:
            nonlocal attempts
            attempts += 1
            return obstore.put(
                self._clients.get(), self._key(key), data, mode=mode, use_multipart=False
            )

        try:
            return str(self._try(put, key, "write")[self._tag] or "")
        except StorageError as error:
            if error.reason == "conflict" and attempts > 1 and self.read(key) == data:
                info = self.head(key)
                return info.etag if info else ""
            raise

    def list(self, prefix: str = "") -> Infos:
        """See `Store.list`."""
        import obstore

        def list_all() -> Infos:
            batches = obstore.list(self._clients.get(), prefix=self._key(prefix) or None)
            return [self._info(cast("dict[str, Any]", meta)) for batch in batches for meta in batch]

        return sorted(self._try(list_all, prefix, "list"), key=lambda info: info.key)

    def list_dirs(self, prefix: str = "") -> Names:
        """See `Store.list_dirs`."""
        import obstore

        top = self._key(prefix) or None
        listing = self._try(
            lambda: obstore.list_with_delimiter(self._clients.get(), prefix=top), prefix, "list"
        )
        return sorted(path.rstrip("/").rpartition("/")[2] for path in listing["common_prefixes"])

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
        """See `Store.download`."""
        deadline_s = self.config.deadline if deadline_s is None else deadline_s
        until = time.monotonic() + deadline_s
        policy = replace(self.policy, deadline_s=deadline_s)

        def fetch() -> int:
            chunks = self._chunks(self._key(key), until=until)
            return write_atomic(chunks, path, location=self.url(key), size=size, hashes=hashes)

        return call_with_retries(
            fetch, location=self.url(key), operation="download", policy=policy, on_retry=on_retry
        )

    def upload(self, path: Path, key: str) -> ObjectInfo:
        """See `Store.upload`. The client retries each part; we retry the whole upload."""
        import obstore

        full = self._key(key)

        def send() -> ObjectInfo:
            size = path.stat().st_size
            part = max(PART_BYTES, -(-size // MAX_PARTS))
            client = self._clients.get(retries=self.config.retries - 1)
            sent = obstore.put(client, full, path, chunk_size=part, use_multipart=size > part)
            stored = self._info(cast("dict[str, Any]", obstore.head(self._clients.get(), full)))
            if stored.size != size or (sent[self._tag] and stored.etag != sent[self._tag]):
                raise StorageError(
                    f"{self.url(key)}: holds {stored.size:,} bytes (etag {stored.etag}) after an "
                    f"upload of {size:,} bytes (etag {sent[self._tag]}). Another process may be "
                    "writing the same object: check that only one run uses this location.",
                    "damaged",
                )
            return stored

        return self._try(send, key, f"upload of {path.name}")

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._delete([self._key(key)], key)

    def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        keys = [self._key(info.key) for info in self.list(prefix)]
        for first in range(0, len(keys), DELETE_BATCH):
            self._delete(keys[first : first + DELETE_BATCH], prefix)
        return len(keys)

    def _delete(self, full_keys: Names, key: str) -> None:
        import obstore

        def remove() -> None:
            try:
                obstore.delete(self._clients.get(), full_keys)
            except FileNotFoundError:
                if len(full_keys) > 1:
                    for one in full_keys:
                        self._delete([one], key)

        self._try(remove, key, "delete")

    def _chunks(
        self,
        full_key: str,
        *,
        start: int = 0,
        until: float | None = None,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        """Yield the object's bytes from `start` on, as they arrive.

        Raises a timeout when `until` (monotonic) has passed, and a conflict when the etag is not
        `if_match`.
        """
        import obstore

        remaining_s = self.config.timeout if until is None else max(0.05, until - time.monotonic())
        client = self._clients.get(read_timeout_s=min(self.config.timeout, remaining_s))
        options: Any = {"range": {"offset": start}} if start else {}
        if if_match:
            options["version" if self._tag == "version" else "if_match"] = if_match
        for chunk in obstore.get(client, full_key, options=options).stream(
            min_chunk_size=CHUNK_BYTES
        ):
            if until is not None and time.monotonic() > until:
                raise StorageError(
                    f"{self.parsed_location.scheme}://{self.parsed_location.bucket}/{full_key}: "
                    "the deadline has passed while data still arrived. Check the network, or raise "
                    "storage.deadline.",
                    "timeout",
                )
            yield bytes(chunk)

    def _key(self, key: str) -> str:
        """Return the key from the bucket's root."""
        return self.parsed_location.key(key)

    def _try(self, function: Callable[[], T], key: str, operation: str) -> T:
        return call_with_retries(
            function, location=self.url(key), operation=operation, policy=self.policy
        )

    def _info(self, meta: dict[str, Any]) -> ObjectInfo:
        key = meta["path"]
        if self.parsed_location.prefix:
            key = key.removeprefix(self.parsed_location.prefix + "/")
        return ObjectInfo(
            key=key,
            size=meta["size"],
            etag=meta[self._tag] or "",
            modified=meta["last_modified"].timestamp(),
        )
