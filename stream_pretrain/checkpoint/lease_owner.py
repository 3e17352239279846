"""Describe the owner of a run directory, as `lease.json` holds it, and the interface of a lease."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeAlias

from stream_pretrain.checkpoint.process_identity import ProcessIdentity, this_process
from stream_pretrain.errors import OwnerError
from stream_pretrain.storage.store import Store

LEASE_NAME = "lease.json"
Report: TypeAlias = "Callable[[str], None]"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a run directory. Times are Unix seconds on the owner's clock."""

    uuid: str
    process: ProcessIdentity
    since: float
    renewed: float
    released: bool = False

    def to_json(self) -> bytes:
        """Return indented JSON with sorted keys."""
        body = {**asdict(self), "process": self.process.to_dict()}
        return (json.dumps(body, indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> Owner | None:
        """Parse the content of `lease.json`; None when it names no owner."""
        try:
            raw = json.loads(text)
            return cls(**{**raw, "process": ProcessIdentity.from_dict(raw["process"])})
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.process.pid} on {self.process.host}, since {since}"


def new_owner() -> Owner:
    """Return this process as an owner from now on."""
    now = time.time()
    return Owner(uuid=uuid.uuid4().hex, process=this_process(), since=now, renewed=now)


class Lease(ABC):
    """A run directory that this process owns."""

    @abstractmethod
    def confirm(self) -> None:
        """Raise `OwnerError` unless this process still owns the run directory."""

    @abstractmethod
    def release(self) -> None:
        """Give up the run directory, so that the next owner need not wait."""


def in_use_error(run: Store, owner: Owner | None) -> OwnerError:
    """Return the error for a run directory that another process owns."""
    who = str(owner) if owner is not None else "an unnamed process"
    return OwnerError(
        f"{run.url()}: in use by {who}. Stop that process first, or choose another run.dir."
    )
