"""End this process when its parent ends, so that no orphan keeps a cache, a lock or a download.

It works on Linux alone; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process receives when its parent ends."""


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends; leave at once if it already has."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the kernel knew
        os._exit(1)
