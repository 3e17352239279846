"""What a DataLoader worker does first. In: its number. Out: nothing. Does not read data.

torchrun and SLURM signal the whole process group: a worker with the default action would die, and
its rank with it,
before anything is saved. So workers ignore the stop signals, and die with their parent instead.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from stream_pretrain.runtime.stop import ignore_signals

_PR_SET_PDEATHSIG = 1


def start_worker(_worker: int) -> None:
    """Ignore stop signals and use one thread."""
    import torch

    ignore_signals()
    die_with_parent()
    torch.set_num_threads(1)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, so that no orphan holds a cache or a
    download.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died in between
        os._exit(1)
