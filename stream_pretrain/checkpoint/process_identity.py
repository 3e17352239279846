"""Identify a process across machines, containers and reboots, and tell whether it is alive.

Host name and pid alone are ambiguous in containers and after a reboot. The boot id, the pid
namespace and the start time of the process make them unique.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process on some machine. `start_ticks` is its start time in clock ticks since boot."""

    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int

    @property
    def token(self) -> str:
        """Short text for file names: boot id, pid namespace, pid, start time."""
        boot_id = self.boot_id.replace("-", "")
        return f"{boot_id}-{self.pid_namespace}-{self.pid}-{self.start_ticks}"

    def to_dict(self) -> dict[str, Any]:
        """Return the identity as `lease.json` holds it."""
        return {
            "host": self.host,
            "boot_id": self.boot_id,
            "space": self.pid_namespace,
            "pid": self.pid,
            "start": self.start_ticks,
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ProcessIdentity:
        """Read what `to_dict` returned; `TypeError` or `KeyError` for anything else."""
        rest = dict(raw)
        return cls(pid_namespace=rest.pop("space"), start_ticks=rest.pop("start"), **rest)


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    pid = os.getpid()
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=Path("/proc/self/ns/pid").stat().st_ino,
        pid=pid,
        start_ticks=_start_ticks(pid) or 0,
    )


def is_alive(process: ProcessIdentity) -> bool | None:
    """Return whether a process is alive; None for one that cannot be seen from here."""
    return token_is_alive(process.token)


def token_is_alive(token: str) -> bool | None:
    """Return `is_alive` for a token; None also for text that is no token."""
    parts = token.split("-")
    if len(parts) != 4 or not all(part.isdigit() for part in parts[1:]):
        return None
    if parts[:2] != this_process().token.split("-")[:2]:
        return None
    return _start_ticks(int(parts[2])) == int(parts[3])


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a living process; None for none, and for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
