"""A fixed validation set. In: a dataset, how many samples. Out:

the same batches at every evaluation. Never shuffles.

Samples are the first of the joined streams, dealt to ranks in turn. Ranks with fewer fill up with
rows that do not
count, so that all make the same number of forward passes. Rows are read once and kept (two or four
bytes a token).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from stream_pretrain.schema import World


class RowSource(Protocol):
    """Random access to rows: `(sample id, ids [T + 1])`; closed by the holdout that reads them."""

    def __getitem__(self, index: int) -> tuple[int, NDArray[Any]]: ...

    def close(self) -> None:
        """Give back what is held open."""


class ValidationSet:
    """`samples` rows of a source, this rank's share of them in batches of `micro_batch`."""

    def __init__(
        self,
        source: RowSource,
        *,
        samples: int,
        micro_batch: int,
        world: World,
        tokens_per_byte: float | None = None,
    ) -> None:
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        self.samples = samples
        self.tokens_per_byte = tokens_per_byte
        self._source = source
        self._micro_batch = micro_batch
        self._world = world
        self._rows: list[NDArray[Any]] | None = None

    def batches(self) -> Iterator[tuple[torch.Tensor, int]]:
        """(ids int32 [micro_batch, T + 1], rows that count): as many on every rank."""
        rows = self._read()
        own = self._own_samples()
        most = -(-self.samples // self._world.world_size)
        for start in range(0, most, self._micro_batch):
            counted = max(0, min(len(own) - start, self._micro_batch))
            chunk = [rows[min(start + place, len(rows) - 1)] for place in range(self._micro_batch)]
            yield torch.from_numpy(np.stack(chunk).astype(np.int32)), counted

    def close(self) -> None:
        """Give back the source. Batches that were read stay."""
        self._source.close()

    def _own_samples(self) -> Sequence[int]:
        return range(self._world.rank, self.samples, self._world.world_size)

    def _read(self) -> list[NDArray[Any]]:
        if self._rows is None:
            own = self._own_samples() or range(
                1
            )  # a rank without samples fills up with the first row
            self._rows = [np.array(self._source[index][1]) for index in own]
        return self._rows
