"""One owner per run directory. In: a store. Out: a `Lease` held while the block runs.

Locally a file lock, which ends with the process. In a bucket `lease.json`: made create-only,
renewed and taken over by If-Match, so that of two writers one always learns that it lost. Does not
stop anybody: `confirm` raises where the owner is about to publish.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TypeAlias

from stream_pretrain.checkpoint.process import Process, is_alive, this_process
from stream_pretrain.errors import OwnerError, StorageError
from stream_pretrain.storage.store import Store
from stream_pretrain.system.file_lock import OWNER_EXIT_SECONDS, try_lock, wait_for
from stream_pretrain.units import format_duration

LEASE_NAME = "lease.json"
LEASE_SECONDS = 60.0
RENEWALS_PER_LEASE = 4
Say: TypeAlias = "Callable[[str], None]"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who holds a run directory, as `lease.json` says. Times are Unix seconds on its clock."""

    uuid: str
    process: Process
    since: float
    renewed: float
    released: bool = False

    def to_json(self) -> bytes:
        """Indented JSON with sorted keys."""
        return (json.dumps(asdict(self), indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> Owner | None:
        """The owner in a file; None where it names nobody."""
        try:
            raw = json.loads(text)
            return cls(**{**raw, "process": Process(**raw["process"])})
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.process.pid} on {self.process.host}, since {since}"


def new_owner() -> Owner:
    """This process as an owner from now on."""
    now = time.time()
    return Owner(uuid=uuid.uuid4().hex, process=this_process(), since=now, renewed=now)


class Lease(ABC):
    """A run directory that this process owns."""

    @abstractmethod
    def confirm(self) -> None:
        """Return if this process still owns the run directory, else raise `OwnerError`."""

    @abstractmethod
    def release(self) -> None:
        """Let the next owner in at once."""


@contextlib.contextmanager
def hold_lease(
    run: Store, *, seconds: float = LEASE_SECONDS, say: Say = warnings.warn
) -> Iterator[Lease]:
    """Own the run directory while the block runs; `OwnerError` when another live process does.

    A dead owner of this machine is replaced at once, one that cannot be seen from here when it has
    not renewed its lease for `seconds`; `say` hears of both.
    """
    lease = LocalLease.acquire(run, say) if run.is_local else BucketLease.acquire(run, seconds, say)
    try:
        yield lease
    finally:
        lease.release()


def _refusal(run: Store, owner: Owner | None) -> OwnerError:
    who = str(owner) if owner is not None else "an unnamed process"
    return OwnerError(
        f"{run.url()}: in use by {who}. Stop that one first, or choose another run.dir."
    )


@dataclass(kw_only=True)
class LocalLease(Lease):
    """An exclusive lock on `lease.json`, which names the owner."""

    run: Store
    descriptor: int

    @classmethod
    def acquire(cls, run: Store, say: Say) -> LocalLease:
        """Lock the file, or say who has it."""
        run.path.mkdir(parents=True, exist_ok=True)
        path = run.path / LEASE_NAME
        descriptor = try_lock(path, wait_s=OWNER_EXIT_SECONDS, mode=0o644)
        if descriptor is None:
            raise _refusal(run, Owner.from_json(path.read_bytes()))
        try:
            before = Owner.from_json(path.read_bytes())
            if before is not None and not before.released:
                say(f"{run.url()}: taken over from {before}, which is gone.")
            cls._write(descriptor, new_owner())
        except BaseException:
            os.close(descriptor)
            raise
        return cls(run=run, descriptor=descriptor)

    def confirm(self) -> None:
        """A file lock is kept until its process ends; only the file itself can go."""
        try:
            same = os.path.samestat(os.fstat(self.descriptor), (self.run.path / LEASE_NAME).stat())
        except FileNotFoundError:
            same = False
        if not same:
            raise OwnerError(
                f"{self.run.url(LEASE_NAME)}: was removed or replaced, so this process no longer "
                "owns the run directory. Nothing more is saved; start again."
            )

    def release(self) -> None:
        """Note that the owner left in order, and unlock."""
        owner = Owner.from_json(os.pread(self.descriptor, 1 << 16, 0))
        if owner is not None:
            self._write(self.descriptor, replace(owner, released=True))
        os.close(self.descriptor)

    @staticmethod
    def _write(descriptor: int, owner: Owner) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.to_json(), 0)


@dataclass(kw_only=True)
class BucketLease(Lease):
    """`lease.json` in a bucket, renewed by a thread."""

    run: Store
    owner: Owner
    etag: str
    seconds: float
    lost: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _left: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def acquire(cls, run: Store, seconds: float, say: Say) -> BucketLease:
        """Create the lease, or take it over from one that is gone; else `OwnerError`."""
        owner = new_owner()
        while True:
            held = _held(run)
            try:
                if held is None:
                    etag = run.write(LEASE_NAME, owner.to_json(), create_only=True)
                else:
                    _wait_until_gone(run, held, seconds, say)
                    etag = run.write(LEASE_NAME, owner.to_json(), if_match=held[1])
            except StorageError as error:
                if error.reason != "conflict":
                    raise
                continue  # another one was faster: look again who it is
            lease = cls(run=run, owner=owner, etag=etag, seconds=seconds)
            threading.Thread(target=lease._renew_all_along, name="lease", daemon=True).start()
            return lease

    def confirm(self) -> None:
        """Renew now; `OwnerError` when another process has taken the lease."""
        with self._lock:
            if not self.lost:
                self._renew()
            if self.lost:
                raise OwnerError(
                    f"{self.run.url(LEASE_NAME)}: {self.lost} owns the run directory now. Nothing "
                    "more is saved by this process; stop it."
                )

    def release(self) -> None:
        """Stop renewing; the next owner need not wait."""
        self._left.set()
        with self._lock, contextlib.suppress(StorageError):
            if not self.lost:
                self.owner = replace(self.owner, released=True)
                self._renew()

    def _renew_all_along(self) -> None:
        while not self._left.wait(self.seconds / RENEWALS_PER_LEASE):
            # A bucket that does not answer is no reason to stop: `confirm` asks again.
            with self._lock, contextlib.suppress(StorageError):
                if not self.lost:
                    self._renew()

    def _renew(self) -> None:
        self.owner = replace(self.owner, renewed=time.time())
        try:
            self.etag = self.run.write(LEASE_NAME, self.owner.to_json(), if_match=self.etag)
        except StorageError as error:
            if error.reason not in ("conflict", "absent"):
                raise
            self._look_who_has_it()

    def _look_who_has_it(self) -> None:
        """A write that was retried after its answer got lost conflicts with itself."""
        held = _held(self.run)
        if held is not None and held[0] is not None and held[0].uuid == self.owner.uuid:
            self.etag = held[1]
        else:
            self.lost = str(held[0]) if held is not None and held[0] is not None else "nobody"


def _held(run: Store) -> tuple[Owner | None, str] | None:
    """Owner and etag of the lease in a bucket; None where there is none."""
    try:
        for _ in range(10):
            info = run.head(LEASE_NAME)
            if info is None:
                return None
            text = run.read(LEASE_NAME)
            after = run.head(LEASE_NAME)
            if after is not None and after.etag == info.etag:
                return Owner.from_json(text), info.etag
    except StorageError as error:
        if error.reason != "absent":
            raise
        return None
    raise OwnerError(f"{run.url(LEASE_NAME)}: changes all the time. Stop its owners first.")


def _wait_until_gone(run: Store, held: tuple[Owner | None, str], seconds: float, say: Say) -> None:
    """Return when the owner is dead or silent; `OwnerError` as soon as it shows that it lives."""
    owner, etag = held
    if owner is not None and owner.released:
        return
    if owner is not None and not wait_for(lambda: not is_alive(owner.process), OWNER_EXIT_SECONDS):
        raise _refusal(run, owner)
    if owner is not None and is_alive(owner.process) is False:
        say(f"{run.url()}: taken over from {owner}, which is dead.")
        return
    say(
        f"{run.url()}: was in use by {owner or 'an unnamed process'}; waiting "
        f"{format_duration(seconds)} for a sign of life."
    )
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(1.0, seconds / RENEWALS_PER_LEASE))
        info = run.head(LEASE_NAME)
        if info is None or info.etag != etag:
            now = _held(run)
            if now is None or (now[0] is not None and now[0].released):
                return
            raise _refusal(run, now[0])
    say(f"{run.url()}: taken over from {owner or 'an unnamed process'}, which gave no sign.")
