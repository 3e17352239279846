"""What a run has seen, in 16 hex digits. In: token rows. Out: hashes and a chain.

Does not read data.

A sample's hash is XXH64 (seed 0) of its ids as little-endian uint32. A data step's sum is the sum
of its samples'
hashes modulo 2**64, so the order within a step, the rank, the worker and the micro-batch do not
matter. The chain is
`d_0 = 0`, `d_N = XXH64(le64(d_{N-1}) || le64(s_N))`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

EMPTY_DIGEST = "0" * 16
_MASK = (1 << 64) - 1


def sample_hash(ids: NDArray[Any]) -> int:
    """Hash of one row of `seq_len + 1` token ids; the dtype of the row does not matter."""
    return xxhash.xxh64_intdigest(np.ascontiguousarray(ids, dtype="<u4").data, seed=0)


def step_sum(hashes: Iterable[int]) -> int:
    """Sum of sample hashes modulo 2**64, as an unsigned integer."""
    total = 0
    for value in hashes:
        total = (total + value) & _MASK
    return total


def as_signed(value: int) -> int:
    """The int64 with the same 64 bits, for a tensor to reduce (int64 addition wraps alike)."""
    return value - (1 << 64) if value >= 1 << 63 else value


def as_unsigned(value: int) -> int:
    """The opposite of `as_signed`."""
    return value & _MASK


def chain(previous: str, total: int) -> str:
    """Digest after a data step: `previous` has 16 hex digits, `total` is that step's `step_sum`."""
    if len(previous) != 16:
        raise ValueError(f"digest must have 16 hex digits, got {previous!r}")
    joined = struct.pack("<QQ", int(previous, 16), total & _MASK)
    return f"{xxhash.xxh64_intdigest(joined, seed=0):016x}"
