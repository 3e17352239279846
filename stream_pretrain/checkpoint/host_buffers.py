"""Live tensors -> copies in host memory. In: tensors of any device. Out: CPU tensors in buffers
that are reused.

The loop stands still for this copy and nothing else. Buffers are page-locked where tensors come
from a GPU, and their pages are touched ahead of the first save, so that it is as fast as the later
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
    """One buffer per name. `prepare` makes spare ones in the background, by shape."""

    _named: dict[str, Tensor] = field(default_factory=dict)
    _spare: dict[_Kind, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    _preparation: threading.Thread | None = None

    def prepare(self, parts: Iterable[Tensor]) -> None:
        """Start making a touched buffer for each of `parts` (this rank's shards)."""
        kinds = [_kind(part) for part in parts]
        self._preparation = threading.Thread(
            target=self._fill, args=(kinds,), name="checkpoint-buffers", daemon=True
        )
        self._preparation.start()

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Host copies of this rank's shards, complete on return and valid until the next call."""
        if self._preparation is not None:
            self._preparation.join()
            self._preparation = None
        copies = {}
        devices = set()
        for name, tensor in tensors.items():
            part = local_shard(tensor.detach())
            copies[name] = self._buffer(name, part)
            copies[name].copy_(part, non_blocking=True)
            if part.is_cuda:
                devices.add(part.device)
        for device in devices:
            torch.cuda.synchronize(device)
        self._named = copies
        self._spare.clear()
        return copies

    def free(self) -> None:
        """Give all memory back."""
        self._named = {}
        self._spare.clear()

    def _fill(self, kinds: Iterable[_Kind]) -> None:
        for kind in kinds:
            self._spare[kind].append(_make(kind).zero_())

    def _buffer(self, name: str, part: Tensor) -> Tensor:
        kind = _kind(part)
        buffer = self._named.get(name)
        if buffer is not None and (buffer.shape, buffer.dtype) == kind[:2]:
            return buffer
        return self._spare[kind].pop() if self._spare[kind] else _make(kind)


def _kind(part: Tensor) -> _Kind:
    return part.shape, part.dtype, part.is_cuda


def _make(kind: _Kind) -> Tensor:
    shape, dtype, pinned = kind
    return torch.empty(shape, dtype=dtype, pin_memory=pinned)
