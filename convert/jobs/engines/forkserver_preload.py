"""Import what the workers need in the fork server, so that they inherit it.

The fork server loads this module by name. It starts no threads and opens no buckets: those do not
survive a fork.
"""

from __future__ import annotations

import contextlib

import pyarrow.parquet  # noqa: F401

import convert.jobs.engines.local_engine  # noqa: F401
from convert.encoding.fallback_encoder import unproven_characters

with contextlib.suppress(ImportError):
    import awkward  # type: ignore[import-untyped]  # noqa: F401
    import gigatoken  # noqa: F401

unproven_characters()
