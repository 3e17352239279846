"""Which process is this, and does another one live? In: nothing. Out: `Process` and its token.

Host and pid alone mistake themselves in containers and after a reboot: the boot id and the
process's start time settle it.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of some machine. `space` is its pid namespace, `start` clock ticks since boot."""

    host: str
    boot_id: str
    space: int
    pid: int
    start: int

    @property
    def token(self) -> str:
        """Short name for files: boot, pid namespace, pid, start."""
        return f"{self.boot_id.replace('-', '')}-{self.space}-{self.pid}-{self.start}"


def this_process() -> Process:
    """The calling process."""
    pid = os.getpid()
    return Process(
        host=socket.gethostname(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        space=Path("/proc/self/ns/pid").stat().st_ino,
        pid=pid,
        start=_start(pid) or 0,
    )


def is_alive(process: Process) -> bool | None:
    """True or False for a process that can be seen from here, None for one that cannot."""
    return token_is_alive(process.token)


def token_is_alive(token: str) -> bool | None:
    """`is_alive` for a token; None where it is another machine's or container's, or no token."""
    parts = token.split("-")
    if len(parts) != 4 or not all(part.isdigit() for part in parts[1:]):
        return None
    if parts[:2] != this_process().token.split("-")[:2]:
        return None
    return _start(int(parts[2])) == int(parts[3])


def _start(pid: int) -> int | None:
    """Start time of a living process; None for none and for one that only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
