"""Shard a model over ranks with FSDP2.

The model says which of its modules are blocks (`blocks()`). Each block is a unit of its own, so
that one block's full weights exist at a time; the rest (embedding, head, last norm) is one more.
Tied weights stay one parameter, since both lie in that last unit.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard


class BlockSharder:
    """The function that Fabric's `ModelParallelStrategy` calls: `sharder(module, mesh)`.

    `group` ranks share one copy of the model and its optimizer; groups hold copies (HSDP, as in
    torch's two-dimensional meshes). With `group` equal to the world size this is plain FSDP2.
    """

    def __init__(self, *, world_size: int, group: int, device_type: str) -> None:
        if world_size % group:
            raise ValueError(f"group must divide the {world_size} ranks, got {group}")
        self._world_size = world_size
        self._group = group
        self._device_type = device_type

    def __call__(self, module: nn.Module, _mesh: DeviceMesh) -> nn.Module:
        mesh = self._make_mesh()
        model: Any = module
        for block in model.blocks():
            fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)
        return module

    def _make_mesh(self) -> DeviceMesh:
        if self._group == self._world_size:
            return init_device_mesh(self._device_type, (self._world_size,))
        copies = self._world_size // self._group
        return init_device_mesh(
            self._device_type, (copies, self._group), mesh_dim_names=("replicate", "shard")
        )
