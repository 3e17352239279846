"""Raw shards on this machine -> bytes of samples. In: paths, sample numbers. Out: bytes.

Fetches nothing.

A file stays open for as long as it is used (the library opens it for every sample), and its table
of offsets is checked once. Bytes come by `pread`, so a file that is cut short is an error and not a
bus error.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class _Open:
    descriptor: int
    offsets: NDArray[np.uint32]


class ShardFiles:
    """Open raw shards of one process, the `most` last used ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[int, _Open] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardFiles, (self._most,)

    def sample(self, shard: int, path: Path, samples: int, row: int) -> bytes:
        """Bytes of sample `row`.

        FileNotFoundError when the shard is not here, ValueError when it is damaged.
        """
        found = self._open.get(shard)
        if found is None:
            found = self._admit(shard, path, samples)
        else:
            self._open.move_to_end(shard)
        begin, end = int(found.offsets[row]), int(found.offsets[row + 1])
        data = os.pread(found.descriptor, end - begin, begin)
        if len(data) != end - begin:
            raise ValueError(f"it ends {end - begin - len(data)} bytes before sample {row} does")
        return data

    def forget(self, shard: int) -> None:
        """Close a shard, for one that was removed or replaced."""
        found = self._open.pop(shard, None)
        if found is not None:
            os.close(found.descriptor)

    def close(self) -> None:
        """Close all."""
        for shard in list(self._open):
            self.forget(shard)

    def _admit(self, shard: int, path: Path, samples: int) -> _Open:
        while len(self._open) >= self._most:
            self.forget(next(iter(self._open)))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            offsets = _offsets(descriptor, samples)
        except ValueError:
            os.close(descriptor)
            raise
        found = self._open[shard] = _Open(descriptor, offsets)
        return found

    def __del__(self) -> None:
        self.close()


def _offsets(descriptor: int, samples: int) -> NDArray[np.uint32]:
    head = os.pread(descriptor, 4 * (samples + 2), 0)
    if len(head) != 4 * (samples + 2):
        raise ValueError("it ends within its table of offsets")
    table = np.frombuffer(head, "<u4")
    offsets = table[1:]
    if table[0] != samples:
        raise ValueError(f"it holds {table[0]:,} samples, index.json says {samples:,}")
    size = os.fstat(descriptor).st_size
    if offsets[0] < 4 * (samples + 2) or offsets[-1] > size or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("its table of offsets leads out of the file")
    return offsets
