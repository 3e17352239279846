"""Write a directory that is whole or absent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.system.paths import sync_path


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield a staging directory beside `out`, which is renamed to `out` when the block succeeds.

    It is removed when the block raises.

    Raises:
        ConfigError: `out` exists and holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        remedy = "exists already; name a new directory"
        raise ConfigError.of([Fault(path="--out", found=str(out), remedy=remedy)])
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield staging
        for path in staging.iterdir():  # the bytes reach the disk before the name does
            sync_path(path)
        staging.chmod(0o755)
        staging.replace(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
