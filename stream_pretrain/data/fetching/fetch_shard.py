"""One shard: from a bucket to a verified raw file, or a `ShardError` that says why not.

Does not decide when.

In: a shard, its store, a directory. Out: the raw file under its final name. Nothing unverified ever
has that name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stream_pretrain.data.node.slow_wait_log import log, log_slow_wait
from stream_pretrain.errors import ShardError, StorageError
from stream_pretrain.mds.decompress import unpacked
from stream_pretrain.mds.index import Shard, ShardFile
from stream_pretrain.storage.failures import explain
from stream_pretrain.storage.hashing import blocks, hash_of
from stream_pretrain.storage.retry import Retry
from stream_pretrain.storage.store import Store
from stream_pretrain.storage.transfer import temporary_name, write_whole

Verify = Literal["arrival", "full", "sizes"]


@dataclass(frozen=True, kw_only=True)
class FetchSettings:
    """`verify` as in `data.verify`; `deadline_s` bounds one shard, all attempts together."""

    verify: Verify = "arrival"
    deadline_s: float = 600.0
    warn_after_s: float = 30.0


def fetch_shard(shard: Shard, store: Store, directory: Path, settings: FetchSettings) -> Path:
    """Fetch, check, unpack and check again; the raw file.

    `ShardError` names the shard and the cause.
    """
    place = store.url(shard.fetched.name)
    target = directory / shard.raw.name
    try:
        with log_slow_wait(f"shard {place}", settings.warn_after_s):
            if shard.packed is None:
                _download(shard.raw, store, target, settings)
            else:
                _download_packed(shard, shard.packed, store, target, settings)
    except (StorageError, OSError) as error:
        raise shard_error(error, place, store, directory) from error
    return target


def verify_shard(shard: Shard, path: Path, settings: FetchSettings, place: str) -> str | None:
    """What is wrong with a raw file that is already here, None when nothing is."""
    size = path.stat().st_size
    if size != shard.raw.size:
        return f"{place}: holds {size:,} bytes, index.json says {shard.raw.size:,}"
    if settings.verify == "sizes":
        return None
    for algorithm, expected in shard.raw.fastest_hash.items():
        found = hash_of(algorithm, path)
        if found != expected.lower():
            return f"{place}: {algorithm} is {found}, index.json says {expected}"
    return None


def shard_error(error: Exception, place: str, store: Store, directory: Path) -> ShardError:
    """A `ShardError` out of whatever went wrong below."""
    reason = error.reason if isinstance(error, StorageError) else explain(error)[0]
    text = str(error) if isinstance(error, StorageError) else f"{explain(error)[1]} at {directory}."
    if reason == "damaged":
        text += f" Upload the shard again, or run: convert-mds verify {store.location}"
    if reason == "full":
        text = f"No space left on device at {directory}. Free some, or set data.cache.limit."
    return ShardError(text if text.startswith(place) else f"{place}: {text}")


def _hashes(file: ShardFile, settings: FetchSettings) -> dict[str, str]:
    return {} if settings.verify == "sizes" else file.fastest_hash


def _download(file: ShardFile, store: Store, target: Path, settings: FetchSettings) -> None:
    store.download(
        file.name,
        target,
        size=file.size,
        hashes=_hashes(file, settings),
        deadline_s=settings.deadline_s,
        on_retry=log_retry,
    )


def _download_packed(
    shard: Shard, packed: ShardFile, store: Store, target: Path, settings: FetchSettings
) -> None:
    assert shard.compression is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    arrived = temporary_name(target)
    place = store.url(packed.name)
    try:
        _download(packed, store, arrived, settings)
        with arrived.open("rb") as file:
            write_whole(
                unpacked(blocks(file), shard.compression, limit=shard.raw.size, place=place),
                target,
                place=f"{place}, unpacked",
                size=shard.raw.size,
                hashes=_hashes(shard.raw, settings),
            )
    finally:
        arrived.unlink(missing_ok=True)


def log_retry(retry: Retry) -> None:
    """One line for each attempt that is followed by another."""
    log.warning(
        "%s (attempt %d of %d, next in %.1f s, process %d)",
        str(retry.error).rstrip("."),
        retry.attempt,
        retry.attempts,
        retry.wait_s,
        os.getpid(),
    )
