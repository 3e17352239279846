"""Thin first version; the checkpoint owner replaces it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stream_pretrain.storage.store import Store


@contextlib.contextmanager
def hold_lease(run: Store) -> Iterator[None]:
    """Own the run directory while the block runs."""
    yield
