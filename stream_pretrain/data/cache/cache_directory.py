"""Where a node keeps the shards of a stream. In: a stream's index, the `cache` section. Out: a
directory that is ours.

A directory has one owner at a time, who holds a lock in it. Before it is used it is scanned: half-
written files, wrong sizes and shards that the index no longer lists are removed, and nothing else
ever is. Does not fetch.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stream_pretrain.errors import ConfigError, DataError, OwnerError
from stream_pretrain.mds.index import ShardFile, StreamIndex, parse_index
from stream_pretrain.schema import INDEX_NAME
from stream_pretrain.storage.hashing import xxh64_of
from stream_pretrain.storage.transfer import TEMPORARY_SUFFIX, write_whole
from stream_pretrain.system.file_lock import OWNER_EXIT_SECONDS, try_lock

LOCK_NAME = "owner.lock"
MOST_SLOTS = 64
_NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "9p", "afs")
) | frozenset(("panfs", "wekafs", "virtiofs", "glusterfs"))
log = logging.getLogger("stream_pretrain.data")


class CacheLock:
    """Ownership of a cache directory, until the last holder in this process is gone or closes."""

    _descriptors: ClassVar[dict[Path, int]] = {}
    _holders: ClassVar[Counter[Path]] = Counter()

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._held = True
        self._descriptors[directory] = descriptor
        self._holders[directory] += 1

    @classmethod
    def of_this_process(cls, directory: Path) -> CacheLock | None:
        """One more holder of a directory that this process owns already, None when it does not."""
        descriptor = cls._descriptors.get(directory)
        return None if descriptor is None else cls(directory, descriptor)

    def close(self) -> None:
        """Give it back."""
        if not self._held:
            return
        self._held = False
        self._holders[self.directory] -= 1
        if not self._holders[self.directory]:
            os.close(self._descriptors.pop(self.directory))

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True)
class CacheScan:
    """What a scan found: shards kept (with their bytes), files removed by reason."""

    kept: int
    kept_bytes: int
    damaged: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()


def cache_name(label: str, location: str) -> str:
    """Directory name for a stream: readable, and different for different locations."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in label).strip(".") or "stream"
    return f"{plain[:40]}-{xxh64_of(location.encode())[:12]}"


def node_root(root: Path) -> Path:
    """`root`, or a directory in it for this host where `root` lies on a file system that nodes
    share.
    """
    return root / socket.gethostname() if is_network_path(root) else root


def claim_directory(directory: Path, *, run: str) -> CacheLock:
    """Take a directory that the configuration names.

    `OwnerError` names the live process that has it.
    """
    lock = _try_lock(directory, run, wait_s=OWNER_EXIT_SECONDS)
    if lock is None:
        raise OwnerError(
            f"{directory}: is the cache of {owner_of(directory)}. Give this run another `local`, "
            f"or wait for that one."
        )
    return lock


def claim_free_directory(directory: Path, *, run: str) -> CacheLock:
    """Take `directory`, or the next free of `directory.2`, `directory.3`, … while other jobs have
    the first ones.
    """
    for slot in range(1, MOST_SLOTS + 1):
        candidate = directory if slot == 1 else directory.with_name(f"{directory.name}.{slot}")
        wait_s = OWNER_EXIT_SECONDS if _last_run(candidate) == run else 0.0
        lock = _try_lock(candidate, run, wait_s=wait_s)
        if lock is not None:
            return lock
    raise OwnerError(
        f"{directory}: all {MOST_SLOTS} caches of this stream are in use on this machine. Set "
        f"data.cache.dir."
    )


def _last_run(directory: Path) -> str | None:
    """The run that wrote the lock file last; None where nothing says so."""
    try:
        return str(json.loads((directory / LOCK_NAME).read_text())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def owner_of(directory: Path) -> str:
    """Who wrote the lock file last, in words."""
    try:
        owner = json.loads((directory / LOCK_NAME).read_text())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["since"]))
        return f"run {owner['run']} (host {owner['host']}, process {owner['pid']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def scan(directory: Path, index: StreamIndex) -> CacheScan:
    """Make a cache fit its index, and write the index into it. The caller owns the directory."""
    old = _cached_index(directory)
    outdated = _remove_outdated(directory, old, index) if old else []
    temporary = [_remove(path) for path in sorted(directory.rglob(f"*{TEMPORARY_SUFFIX}"))]
    damaged, kept = [], []
    for shard in index.shards:
        path = directory / shard.raw.name
        if path.is_file():
            if path.stat().st_size == shard.raw.size:
                kept.append(shard.raw.size)
            else:
                damaged.append(_remove(path))
        if shard.packed is not None and (directory / shard.packed.name).is_file():
            temporary.append(_remove(directory / shard.packed.name))
    if old is None or old.digest != index.digest:
        write_whole([index.text], directory / INDEX_NAME, place=str(directory / INDEX_NAME))
    found = CacheScan(
        kept=len(kept),
        kept_bytes=sum(kept),
        damaged=tuple(damaged),
        outdated=tuple(outdated),
        temporary=tuple(temporary),
    )
    _report(directory, found)
    return found


def refuse_foreign(directory: Path, index: StreamIndex) -> None:
    """`ConfigError` when a directory holds a dataset that no cache of ours put there."""
    if (directory / LOCK_NAME).exists() or not (directory / INDEX_NAME).exists():
        return
    old = _cached_index(directory)
    if old is None or old.digest != index.digest:
        raise ConfigError(
            f"{directory}: holds a dataset of its own (index.json is not that of "
            f"{index.location}), so it is not "
            "used as a cache. Choose another `local`."
        )


def is_network_path(path: Path) -> bool:
    """True when `path` lies on a file system that several nodes may share."""
    resolved = path.absolute()
    while not resolved.exists() and resolved != resolved.parent:
        resolved = resolved.parent
    resolved = resolved.resolve()
    best, kind = -1, ""
    for mount, file_system in _mounts():
        inside = mount == resolved or mount in resolved.parents
        if inside and len(str(mount)) > best:
            best, kind = len(str(mount)), file_system
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def _mounts() -> list[tuple[Path, str]]:
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [(Path(parts[1].replace("\\040", " ")), parts[2]) for parts in fields if len(parts) > 2]


def _try_lock(directory: Path, run: str, *, wait_s: float) -> CacheLock | None:
    """The lock; None when another process still has it after `wait_s`."""
    ours = CacheLock.of_this_process(directory)
    if ours is not None:
        return ours
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = try_lock(directory / LOCK_NAME, wait_s=wait_s, mode=0o644)
    if descriptor is None:
        return None
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "run": run, "since": time.time()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)
    return CacheLock(directory, descriptor)


def _cached_index(directory: Path) -> StreamIndex | None:
    """The index that the cache was filled from; None when there is none that can be read."""
    try:
        return parse_index((directory / INDEX_NAME).read_bytes(), str(directory))
    except (FileNotFoundError, DataError):
        return None


def _remove_outdated(directory: Path, old: StreamIndex, new: StreamIndex) -> list[str]:
    """Files of the old index of which the new one does not say, by hash, that they are the same."""
    if old.digest == new.digest:
        return []
    listed = {shard.raw.name: shard.raw for shard in new.shards}
    stale = [
        directory / shard.raw.name
        for shard in old.shards
        if not _is_same(shard.raw, listed.get(shard.raw.name))
    ]
    return [_remove(path) for path in stale if path.is_file()]


def _is_same(old: ShardFile, new: ShardFile | None) -> bool:
    if new is None or old.size != new.size:
        return False
    common = set(old.hashes) & set(new.hashes)
    return bool(common) and all(old.hashes[name] == new.hashes[name] for name in common)


def _remove(path: Path) -> str:
    path.unlink(missing_ok=True)
    return path.name


def _report(directory: Path, found: CacheScan) -> None:
    removed = {
        "of another version of the dataset": found.outdated,
        "of a wrong size": found.damaged,
        "half-written": found.temporary,
    }
    for reason, names in removed.items():
        if names:
            log.warning(
                "%s: removed %d files %s, for example %s", directory, len(names), reason, names[0]
            )
