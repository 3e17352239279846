"""What the fork server imports, so that its workers need not. In: nothing. Out: loaded modules.

Uses neither threads nor buckets: those do not survive a fork.
"""

from __future__ import annotations

import contextlib

import pyarrow.parquet  # noqa: F401

import convert.jobs.engines.local_engine  # noqa: F401
from convert.encoding.fallback_encoder import old_pattern

with contextlib.suppress(ImportError):
    import awkward  # type: ignore[import-untyped]  # noqa: F401
    import gigatoken  # noqa: F401

old_pattern()
