"""What the fork server imports, so that its workers need not. In: nothing. Out: loaded modules.

Uses neither threads nor buckets: those do not survive a fork.
"""

from __future__ import annotations

import contextlib

import pyarrow.parquet  # noqa: F401

import convert.engines.local  # noqa: F401
from convert.trusted import old_pattern

with contextlib.suppress(ImportError):
    import awkward  # type: ignore[import-untyped]  # noqa: F401
    import gigatoken  # noqa: F401

old_pattern()
