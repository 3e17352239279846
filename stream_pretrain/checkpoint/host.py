"""Live tensors -> copies in host memory. In: tensors of any device. Out: CPU tensors in buffers that are reused.

The loop stands still for this copy and nothing else. Buffers are page-locked where tensors come from a GPU, and
their pages are touched before the first save, so that the first copy is as fast as the later ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from stream_pretrain.checkpoint.tensors import local_part


class HostBuffers:
    """One buffer per name, made when first needed or ahead of time by `prepare`."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Host copies of this rank's parts, valid until the next call; waits until they are complete."""
        copies = {}
        devices = set()
        for name, tensor in tensors.items():
            part = local_part(tensor.detach())
            buffer = self._buffer(name, part)
            buffer.copy_(part, non_blocking=True)
            copies[name] = buffer
            if part.is_cuda:
                devices.add(part.device)
        for device in devices:
            torch.cuda.synchronize(device)
        return copies

    def keep(self, names: Iterable[str]) -> None:
        """Free the buffers of all other names."""
        kept = set(names)
        self._buffers = {name: buffer for name, buffer in self._buffers.items() if name in kept}

    def _buffer(self, name: str, part: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != part.shape or buffer.dtype != part.dtype:
            buffer = torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda)
            self._buffers[name] = buffer
        return buffer
