"""A bucket as a store, through obstore: S3 and all that speak it, GCS, Azure. In: keys. Out:
objects.

The client is made on first use and never crosses a fork: obstore's threads do not exist in a forked
child, which would crash or hang, so such a child gets an error instead. Does not cache.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, cast

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.clients import make_client
from stream_pretrain.storage.location import Location
from stream_pretrain.storage.reader import ResumingReader
from stream_pretrain.storage.retry import OnRetry, retried
from stream_pretrain.storage.store import Infos, Names, ObjectInfo, Store
from stream_pretrain.storage.transfer import write_whole

if TYPE_CHECKING:
    from obstore import PutResult
    from obstore.store import ObjectStore

    from stream_pretrain.config.sections import StorageConfig

T = TypeVar("T")
CHUNK_BYTES = (
    1  # hand on whatever has arrived: a larger minimum would hide a slow drip from the deadline
)
PART_BYTES = 8 << 20
MOST_PARTS = 9_000
DELETE_BATCH = 1_000

_used_by_pid: int | None = None


class BucketStore(Store):
    """Objects below `scheme://bucket/prefix`."""

    def __init__(self, place: Location, config: StorageConfig) -> None:
        super().__init__(place, config)
        self._clients: dict[tuple[int, float], ObjectStore] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["place"], state["config"])  # type: ignore[misc]

    @property
    def _tag(self) -> Literal["e_tag", "version"]:
        """What conditions compare: etags; in GCS, where the client asks for them, generations."""
        return "version" if self.place.scheme == "gs" else "e_tag"

    def head(self, key: str) -> ObjectInfo | None:
        """See `Store.head`."""
        import obstore

        try:
            meta = self._try(lambda: obstore.head(self._client(), self.place.key(key)), key, "head")
        except StorageError as error:
            if error.reason == "absent":
                return None
            raise
        return self._info(cast("dict[str, Any]", meta))

    def read(self, key: str) -> bytes:
        """See `Store.read`."""
        import obstore

        full = self.place.key(key)
        return self._try(lambda: bytes(obstore.get(self._client(), full).bytes()), key, "read")

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store.read_range`."""
        import obstore

        full = self.place.key(key)
        return self._try(
            lambda: bytes(obstore.get_range(self._client(), full, start=start, length=length)),
            key,
            "read",
        )

    def open_stream(self, key: str) -> BinaryIO:
        """See `Store.open_stream`."""
        info = self.head(key)
        if info is None:
            raise StorageError(f"{self.url(key)}: not found.", "absent")
        raw = ResumingReader(
            self._chunks, self.place.key(key), info, place=self.url(key), policy=self.policy
        )
        return cast(BinaryIO, io.BufferedReader(raw, buffer_size=1 << 20))

    def write(
        self, key: str, data: bytes, *, create_only: bool = False, if_match: str | None = None
    ) -> str:
        """See `Store.write`.

        A conflict with our own earlier attempt, whose answer was lost, is success.
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
                self._client(), self.place.key(key), data, mode=mode, use_multipart=False
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

        def collect() -> Infos:
            batches = obstore.list(self._client(), prefix=self.place.key(prefix) or None)
            return [self._info(cast("dict[str, Any]", meta)) for batch in batches for meta in batch]

        return sorted(self._try(collect, prefix, "list"), key=lambda info: info.key)

    def list_dirs(self, prefix: str = "") -> Names:
        """See `Store.list_dirs`."""
        import obstore

        top = self.place.key(prefix) or None
        found = self._try(
            lambda: obstore.list_with_delimiter(self._client(), prefix=top), prefix, "list"
        )
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

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
            chunks = self._chunks(self.place.key(key), until=until)
            return write_whole(chunks, path, place=self.url(key), size=size, hashes=hashes)

        return retried(
            fetch, place=self.url(key), doing="download", policy=policy, on_retry=on_retry
        )

    def upload(self, path: Path, key: str) -> ObjectInfo:
        """See `Store.upload`. Each part is tried again by the client, the whole by us."""
        import obstore

        full = self.place.key(key)

        def send() -> ObjectInfo:
            size = path.stat().st_size
            part = max(PART_BYTES, -(-size // MOST_PARTS))
            client = self._client(retries=self.config.retries - 1)
            sent = obstore.put(client, full, path, chunk_size=part, use_multipart=size > part)
            held = self._info(cast("dict[str, Any]", obstore.head(self._client(), full)))
            if held.size != size or (sent[self._tag] and held.etag != sent[self._tag]):
                raise StorageError(
                    f"{self.url(key)}: holds {held.size:,} bytes (etag {held.etag}) after an "
                    f"upload of {size:,} "
                    f"(etag {sent[self._tag]}). Another process may write the same object.",
                    "damaged",
                )
            return held

        return self._try(send, key, f"upload of {path.name}")

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._delete([self.place.key(key)], key)

    def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        keys = [self.place.key(info.key) for info in self.list(prefix)]
        for first in range(0, len(keys), DELETE_BATCH):
            self._delete(keys[first : first + DELETE_BATCH], prefix)
        return len(keys)

    def _delete(self, full_keys: Names, key: str) -> None:
        import obstore

        def remove() -> None:
            try:
                obstore.delete(self._client(), full_keys)
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
        """The object's bytes from `start` on, as they arrive.

        A timeout when `until` (monotonic) has passed; a conflict when the etag is not `if_match`.
        """
        import obstore

        left = self.config.timeout if until is None else max(0.05, until - time.monotonic())
        client = self._client(read_timeout_s=min(self.config.timeout, left))
        options: Any = {"range": {"offset": start}} if start else {}
        if if_match:
            options["version" if self._tag == "version" else "if_match"] = if_match
        for chunk in obstore.get(client, full_key, options=options).stream(
            min_chunk_size=CHUNK_BYTES
        ):
            if until is not None and time.monotonic() > until:
                raise StorageError(
                    f"{self.place.scheme}://{self.place.bucket}/{full_key}: "
                    "the deadline has passed while data still arrived.",
                    "timeout",
                )
            yield bytes(chunk)

    def _try(self, function: Callable[[], T], key: str, doing: str) -> T:
        return retried(function, place=self.url(key), doing=doing, policy=self.policy)

    def _client(self, *, retries: int = 0, read_timeout_s: float | None = None) -> ObjectStore:
        """This process's client; one for each patience."""
        refuse_after_fork(self.location)
        wanted = (retries, read_timeout_s or self.config.timeout)
        with self._lock:
            if wanted not in self._clients:
                self._clients[wanted] = make_client(
                    self.place, self.config, retries=wanted[0], read_timeout_s=wanted[1]
                )
            return self._clients[wanted]

    def _info(self, meta: dict[str, Any]) -> ObjectInfo:
        key = meta["path"]
        if self.place.prefix:
            key = key.removeprefix(self.place.prefix + "/")
        return ObjectInfo(
            key=key,
            size=meta["size"],
            etag=meta[self._tag] or "",
            modified=meta["last_modified"].timestamp(),
        )


def refuse_after_fork(place: str) -> None:
    """`StorageError` in a process that was forked from one that had already used a bucket."""
    global _used_by_pid
    if _used_by_pid is None:
        _used_by_pid = os.getpid()
    elif _used_by_pid != os.getpid():
        raise StorageError(
            f"{place}: this process was forked from one that already used a bucket, and its "
            f"client does not "
            "survive that. Start the process with multiprocessing's 'forkserver' or 'spawn'."
        )
