"""Small streams of shards. In: how many rows, which encoding. Out: a directory with `index.json`,
and the rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convert.output.mds_shards import ShardFormat, encode_shard, index_json

SEQ_LEN = 7


@dataclass(frozen=True, kw_only=True)
class SmallStream:
    """`rows` [N, SEQ_LEN + 1] are what the shards in `directory` hold, in order."""

    directory: Path
    rows: NDArray[np.uint16]
    names: tuple[str, ...]

    def index(self) -> Any:
        """The parsed index."""
        return json.loads((self.directory / "index.json").read_text())

    def rewrite_index(self, index: Any) -> None:
        """Replace it."""
        (self.directory / "index.json").write_text(json.dumps(index))


def small_stream(
    directory: Path, *, shards: int = 10, rows_per_shard: int = 20, compression: str | None = "zstd"
) -> SmallStream:
    """Write a stream whose row n begins with n."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(0).integers(
        0, 256, (shards * rows_per_shard, SEQ_LEN + 1), np.uint16
    )
    rows[:, 0] = np.arange(len(rows))
    form = ShardFormat(seq_len=SEQ_LEN, dtype="uint16", compression=compression, size_limit=1 << 26)
    entries, names = [], []
    for number in range(shards):
        part = rows[number * rows_per_shard : (number + 1) * rows_per_shard]
        shard = encode_shard(part, form, f"shard.{number:05}")
        (directory / shard.name).write_bytes(shard.data)
        entries.append(shard.entry)
        names.append(shard.name)
    (directory / "index.json").write_bytes(index_json(entries))
    return SmallStream(directory=directory, rows=rows, names=tuple(names))
