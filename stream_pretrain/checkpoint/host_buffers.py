"""Copy tensors of any device into reused buffers in host memory.

The training loop waits for this copy and nothing else. Buffers are page-locked where the tensors
are on a GPU, and their pages are touched before the first save, so that it is as fast as the later
ones.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from stream_pretrain.checkpoint.tensors import local_shard

_Kind: TypeAlias = "tuple[torch.Size, torch.dtype, bool]"


@dataclass(kw_only=True, eq=False)
class HostBuffers:
    """One buffer per tensor name; `prepare` allocates spare ones in the background, by shape."""

    _named: dict[str, Tensor] = field(default_factory=dict)
    _spare: dict[_Kind, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    _preparation: threading.Thread | None = None

    def prepare(self, shards: Iterable[Tensor]) -> None:
        """Start to allocate a buffer for each of this rank's shards, and to touch its pages."""
        kinds = [_kind(shard) for shard in shards]
        self._preparation = threading.Thread(
            target=self._fill, args=(kinds,), name="checkpoint-buffers", daemon=True
        )
        self._preparation.start()

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return host copies of this rank's shards, complete now and valid until the next call."""
        if self._preparation is not None:
            self._preparation.join()
            self._preparation = None
        copies = {}
        devices = set()
        for name, tensor in tensors.items():
            shard = local_shard(tensor.detach())
            copies[name] = self._buffer(name, shard)
            copies[name].copy_(shard, non_blocking=True)
            if shard.is_cuda:
                devices.add(shard.device)
        for device in devices:
            torch.cuda.synchronize(device)
        self._named = copies
        self._spare.clear()
        return copies

    def free(self) -> None:
        """Release all memory."""
        self._named = {}
        self._spare.clear()

    def _fill(self, kinds: Iterable[_Kind]) -> None:
        for kind in kinds:
            self._spare[kind].append(_allocate(kind).zero_())

    def _buffer(self, name: str, shard: Tensor) -> Tensor:
        kind = _kind(shard)
        buffer = self._named.get(name)
        if buffer is not None and (buffer.shape, buffer.dtype) == kind[:2]:
            return buffer
        return self._spare[kind].pop() if self._spare[kind] else _allocate(kind)


def _kind(shard: Tensor) -> _Kind:
    return shard.shape, shard.dtype, shard.is_cuda


def _allocate(kind: _Kind) -> Tensor:
    shape, dtype, pinned = kind
    return torch.empty(shape, dtype=dtype, pin_memory=pinned)
