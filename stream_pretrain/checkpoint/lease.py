"""Let only one process own a run directory.

A local run directory is owned through a lock on `lease.json`, which ends with the process; see
`bucket_lease` for one in a bucket. A lease stops nobody else from writing: the owner calls
`confirm` before it publishes a checkpoint, and gets an error when it has lost the lease.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stream_pretrain.checkpoint.bucket_lease import LEASE_SECONDS, BucketLease
from stream_pretrain.checkpoint.lease_owner import (
    LEASE_NAME,
    Lease,
    Owner,
    Report,
    in_use_error,
    new_owner,
)
from stream_pretrain.errors import OwnerError
from stream_pretrain.storage.store import Store
from stream_pretrain.system.file_lock import OWNER_EXIT_SECONDS, try_lock

__all__ = ["Lease", "LocalLease", "hold_lease"]


@contextlib.contextmanager
def hold_lease(
    run: Store, *, seconds: float = LEASE_SECONDS, report: Report = warnings.warn
) -> Iterator[Lease]:
    """Own the run directory while the block runs.

    A dead owner on this machine is replaced at once. An owner on another machine is replaced when
    it has not renewed its lease for `seconds`. `report` gets a message about both.

    Raises:
        OwnerError: another live process owns the run directory.
    """
    lease = (
        LocalLease.acquire(run, report)
        if run.is_local
        else BucketLease.acquire(run, seconds, report)
    )
    try:
        yield lease
    finally:
        lease.release()


@dataclass(kw_only=True)
class LocalLease(Lease):
    """An exclusive lock on `lease.json`, which names the owner."""

    run: Store
    descriptor: int

    @classmethod
    def acquire(cls, run: Store, report: Report) -> LocalLease:
        """Lock the file; `OwnerError` names the process that has the lock."""
        run.path.mkdir(parents=True, exist_ok=True)
        path = run.path / LEASE_NAME
        descriptor = try_lock(path, wait_s=OWNER_EXIT_SECONDS, mode=0o644)
        if descriptor is None:
            raise in_use_error(run, Owner.from_json(path.read_bytes()))
        try:
            previous = Owner.from_json(path.read_bytes())
            if previous is not None and not previous.released:
                report(f"{run.url()}: taken over from {previous}, which has ended.")
            cls._write(descriptor, new_owner())
        except BaseException:
            os.close(descriptor)
            raise
        return cls(run=run, descriptor=descriptor)

    def confirm(self) -> None:
        """See `Lease.confirm`. The lock lasts as long as the process; only the file can vanish."""
        path = self.run.path / LEASE_NAME
        try:
            is_same = os.path.samestat(os.fstat(self.descriptor), path.stat())
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise OwnerError(
                f"{self.run.url(LEASE_NAME)}: was removed or replaced, so this process no longer "
                "owns the run directory. Nothing more is saved; start the run again."
            )

    def release(self) -> None:
        """Write that the lease was released, and unlock the file."""
        owner = Owner.from_json(os.pread(self.descriptor, 1 << 16, 0))
        if owner is not None:
            self._write(self.descriptor, replace(owner, released=True))
        os.close(self.descriptor)

    @staticmethod
    def _write(descriptor: int, owner: Owner) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.to_json(), 0)
