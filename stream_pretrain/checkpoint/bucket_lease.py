"""Own a run directory in a bucket through `lease.json`.

The object is created only if it is absent, and renewed or taken over only if its etag is unchanged,
so that of two writers one always learns that it lost. A thread renews the lease.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field, replace

from stream_pretrain.checkpoint.lease_owner import (
    LEASE_NAME,
    Lease,
    Owner,
    Report,
    in_use_error,
    new_owner,
)
from stream_pretrain.checkpoint.process_identity import is_alive
from stream_pretrain.errors import OwnerError, StorageError
from stream_pretrain.storage.store import Store
from stream_pretrain.system.file_lock import OWNER_EXIT_SECONDS, wait_for
from stream_pretrain.units import format_duration

LEASE_SECONDS = 60.0
RENEWALS_PER_LEASE = 4


@dataclass(frozen=True, kw_only=True)
class _StoredLease:
    """What `lease.json` in the bucket holds; `owner` is None when it cannot be read."""

    owner: Owner | None
    etag: str

    @property
    def is_released(self) -> bool:
        return self.owner is not None and self.owner.released


@dataclass(kw_only=True)
class BucketLease(Lease):
    """A lease on a run directory in a bucket. `lost_to` names the process that took it over."""

    run: Store
    owner: Owner
    etag: str
    seconds: float
    lost_to: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_released: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def acquire(cls, run: Store, seconds: float, report: Report) -> BucketLease:
        """Create the lease, or take it over from an owner that has ended.

        Raises:
            OwnerError: another live process has the lease.
        """
        owner = new_owner()
        while True:
            stored = _read_lease(run)
            try:
                if stored is None:
                    etag = run.write(LEASE_NAME, owner.to_json(), create_only=True)
                else:
                    _wait_until_expired(run, stored, seconds, report)
                    etag = run.write(LEASE_NAME, owner.to_json(), if_match=stored.etag)
            except StorageError as error:
                if error.reason != "conflict":
                    raise
                continue  # another process was faster: read again who it is
            lease = cls(run=run, owner=owner, etag=etag, seconds=seconds)
            threading.Thread(target=lease._renew_regularly, name="lease", daemon=True).start()
            return lease

    def confirm(self) -> None:
        """See `Lease.confirm`. The lease is renewed now."""
        with self._lock:
            if not self.lost_to:
                self._renew()
            if self.lost_to:
                raise OwnerError(
                    f"{self.run.url(LEASE_NAME)}: {self.lost_to} owns the run directory now. "
                    "Nothing more is saved by this process; stop it."
                )

    def release(self) -> None:
        """Stop renewing, and write that the lease was released."""
        self._is_released.set()
        with self._lock, contextlib.suppress(StorageError):
            if not self.lost_to:
                self.owner = replace(self.owner, released=True)
                self._renew()

    def _renew_regularly(self) -> None:
        while not self._is_released.wait(self.seconds / RENEWALS_PER_LEASE):
            # A bucket that does not answer is no reason to stop: `confirm` asks again.
            with self._lock, contextlib.suppress(StorageError):
                if not self.lost_to:
                    self._renew()

    def _renew(self) -> None:
        self.owner = replace(self.owner, renewed=time.time())
        try:
            self.etag = self.run.write(LEASE_NAME, self.owner.to_json(), if_match=self.etag)
        except StorageError as error:
            if error.reason not in ("conflict", "absent"):
                raise
            self._read_new_owner()

    def _read_new_owner(self) -> None:
        """Find out who changed the lease.

        It may have been this process: a write that is retried after its response was lost conflicts
        with itself.
        """
        stored = _read_lease(self.run)
        owner = stored.owner if stored is not None else None
        if stored is not None and owner is not None and owner.uuid == self.owner.uuid:
            self.etag = stored.etag
        else:
            self.lost_to = str(owner) if owner is not None else "nobody"


def _read_lease(run: Store) -> _StoredLease | None:
    """Return the lease in a bucket; None where there is none."""
    try:
        for _ in range(10):
            before = run.head(LEASE_NAME)
            if before is None:
                return None
            text = run.read(LEASE_NAME)
            after = run.head(LEASE_NAME)
            if after is not None and after.etag == before.etag:
                return _StoredLease(owner=Owner.from_json(text), etag=before.etag)
    except StorageError as error:
        if error.reason != "absent":
            raise
        return None
    raise OwnerError(
        f"{run.url(LEASE_NAME)}: changes all the time. Stop the processes that use this run "
        "directory first."
    )


def _wait_until_expired(run: Store, stored: _StoredLease, seconds: float, report: Report) -> None:
    """Return when the owner has released the lease, is dead, or has not renewed it for `seconds`.

    Raises:
        OwnerError: the owner is alive.
    """
    if stored.is_released:
        return
    owner = stored.owner
    if owner is not None:
        if not wait_for(lambda: not is_alive(owner.process), OWNER_EXIT_SECONDS):
            raise in_use_error(run, owner)
        if is_alive(owner.process) is False:
            report(f"{run.url()}: taken over from {owner}, which has ended.")
            return
    who = owner or "an unnamed process"
    report(
        f"{run.url()}: was in use by {who}; waiting {format_duration(seconds)} to see whether it "
        "is still running."
    )
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(1.0, seconds / RENEWALS_PER_LEASE))
        info = run.head(LEASE_NAME)
        if info is None or info.etag != stored.etag:
            current = _read_lease(run)
            if current is None or current.is_released:
                return
            raise in_use_error(run, current.owner)
    report(f"{run.url()}: taken over from {who}, which did not renew its lease.")
