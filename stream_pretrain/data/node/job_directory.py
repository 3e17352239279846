"""A job's own corner of this machine: names in shared memory and small files. In: `World`. Out:
`JobDirectory`.

Streaming names its segments by counting up from zero and trusts what it finds, so jobs collide, and
a killed one leaves its segments behind. Here every job has a random token in all its names, and
holds a lock for as long as it lives: whoever can take that lock knows that the job is dead, and
only then removes what carries its token. Does not read data.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from stream_pretrain.errors import StorageError
from stream_pretrain.schema import World
from stream_pretrain.system.file_lock import file_lock, is_locked, lock_shared
from stream_pretrain.units import format_bytes

SHARED_MEMORY = Path("/dev/shm")
OWNER = "owner"
TOKEN_BELOW = 10**12
DATASETS_PER_JOB = 1000
BYTES_PER_SAMPLE = 8
Share = Callable[[str], Sequence[str]]


class JobDirectory:
    """One job on this machine. `directory` is private to it and the same on all ranks of a node."""

    def __init__(self, directory: Path, lock: int, *, leader: bool) -> None:
        self.directory = directory
        self._lock: int | None = lock
        self._leader = leader
        self._datasets = 0
        atexit.register(self.close)

    @property
    def token(self) -> int:
        """The number that all segments of this job begin with."""
        return int(self.directory.name)

    def next_prefix(self) -> int:
        """A number for the next dataset; the same on all ranks that build their datasets in the
        same order.
        """
        self._datasets += 1
        assert self._datasets < DATASETS_PER_JOB
        return self.token * DATASETS_PER_JOB + self._datasets

    def close(self) -> None:
        """Give the lock back; the leader of the node also removes what the job left."""
        if self._lock is None:
            return
        os.close(self._lock)
        self._lock = None
        atexit.unregister(self.close)
        if self._leader:
            with file_lock(self.directory.parent / "registry"):
                remove_traces(self.directory)


def open_job_directory(
    world: World, *, share: Share | None = None, base: Path | None = None
) -> JobDirectory:
    """Make or join this node's job directory, and remove what dead jobs left.

    Args:
        world: who this process is; the node's first rank makes the directory.
        share: gives every rank's text to every rank, in rank order; None: torch.distributed where
        it runs.
        base: where job directories are; None: in shared memory, else in the temporary directory.
    """
    leader = world.local_rank == 0
    made: tuple[Path, int] | None = None
    if leader:
        made = _make(base or base_directory())
    texts = (share or share_text)(str(made[0]) if made else "")
    if made is None:
        directory = Path(texts[world.rank - world.local_rank])
        made = directory, lock_shared(directory / OWNER)
    return JobDirectory(made[0], made[1], leader=leader)


def base_directory() -> Path:
    """Where the job directories of this user are; made if absent."""
    parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    base = parent / f"stream-pretrain-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise StorageError(f"{base}: belongs to another user. Remove it, or set TMPDIR.", "denied")
    return base


def remove_dead_job_directories(base: Path) -> list[str]:
    """Remove directories and segments of jobs whose lock nobody holds; their tokens.

    Call under the registry lock.
    """
    removed = []
    for directory in sorted(base.iterdir()):
        if not directory.is_dir() or not directory.name.isdigit():
            continue
        if not is_locked(directory / OWNER):
            remove_traces(directory)
            removed.append(directory.name)
    return removed


def remove_traces(directory: Path) -> None:
    """Remove a job's segments, then its directory."""
    for segment in SHARED_MEMORY.glob(f"{directory.name}[0-9][0-9][0-9]_*"):
        segment.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def check_shared_memory(samples_per_epoch: int, *, free: int | None = None) -> None:
    """`StorageError` "full" unless the order of an epoch (8 bytes a sample, padding) fits into
    shared memory.
    """
    needed = samples_per_epoch * BYTES_PER_SAMPLE * 11 // 10 + (1 << 20)
    if free is None:
        free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else needed
    if free < needed:
        raise StorageError(
            f"{SHARED_MEMORY}: {format_bytes(free)} free, the order of an epoch of "
            f"{samples_per_epoch:,} samples needs "
            f"{format_bytes(needed)}. Give the container more shared memory: docker run "
            f"--shm-size={needed >> 20}m, in "
            "Kubernetes an emptyDir of medium Memory at /dev/shm.",
            "full",
        )


def _make(base: Path) -> tuple[Path, int]:
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file_lock(base / "registry"):
        remove_dead_job_directories(base)
        directory = base / f"{secrets.randbelow(TOKEN_BELOW - 10**11) + 10**11}"
        directory.mkdir(mode=0o700)
        return directory, lock_shared(directory / OWNER)


def share_text(text: str) -> Sequence[str]:
    """Every rank's text, through torch.distributed where it runs, else only our own."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return [text]
    texts: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(texts, text)
    return texts
