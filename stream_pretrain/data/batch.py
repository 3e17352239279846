"""Rows -> one micro-batch. In: (sample id, row) pairs. Out: `Batch`. Runs in a DataLoader worker;

does not shuffle.

Axes: B samples, T inputs (`seq_len`); a row has T + 1 ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stream_pretrain.data.sample_order.digest import as_signed, sample_hash, step_sum

Row = tuple[int, NDArray[Any]]


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one rank.

    `ids` is int32 [B, T + 1]; `sample_ids` int64 [B], places in the joined streams; `digest_sum` is
    the signed sum of
    the samples' hashes.
    """

    ids: torch.Tensor
    sample_ids: torch.Tensor
    digest_sum: int

    @property
    def inputs(self) -> torch.Tensor:
        """int64 [B, T]."""
        return self.ids[:, :-1].long()

    @property
    def targets(self) -> torch.Tensor:
        """int64 [B, T]."""
        return self.ids[:, 1:].long()

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device; the copy does not block where the memory is pinned."""
        return replace(self, ids=self.ids.to(device, non_blocking=True))

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel from a worker as plain bytes.

        A tensor would travel as a file descriptor of shared memory, which costs a connection
        between the processes: for some 100 KB several times the copy through a pipe.
        """
        return _arrived, (self.ids.numpy(), self.sample_ids.numpy(), self.digest_sum)

    def pin_memory(self) -> Batch:
        """Called by the DataLoader's pinning thread."""
        return replace(self, ids=self.ids.pin_memory())


def collate(rows: Sequence[Row]) -> Batch:
    """Stack rows into a batch; the hash covers the ids as they came."""
    stacked = np.stack([row for _, row in rows])
    return Batch(
        ids=torch.from_numpy(stacked.astype(np.int32)),
        sample_ids=torch.tensor([place for place, _ in rows], dtype=torch.int64),
        digest_sum=as_signed(step_sum(sample_hash(row) for _, row in rows)),
    )


def _arrived(ids: NDArray[np.int32], sample_ids: NDArray[np.int64], digest_sum: int) -> Batch:
    return Batch(torch.from_numpy(ids), torch.from_numpy(sample_ids), digest_sum)
