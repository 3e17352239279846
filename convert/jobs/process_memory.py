"""Memory of this process. In: nothing. Out: bytes in RAM; freed memory given back. Linux only."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

STATM = Path("/proc/self/statm")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What is in RAM; 0 where the kernel does not say."""
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def malloc_trim() -> None:
    """Return freed memory, which the C library keeps (60 MB after the encoder's check)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # absent in musl
    if trim is not None:
        trim(0)
