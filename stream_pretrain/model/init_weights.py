"""Fill a model with its first weights, which depend on the seed and the architecture alone.

Every parameter is drawn on the CPU from a generator of its own, seeded with a hash of (seed,
parameter name). So the weights depend on the seed and the architecture alone: not on device,
strategy, number of ranks, or module order.

The scheme, for width d and L layers:

- matrices and embeddings: N(0, 2 / (5 d)) ("small init", arXiv 1910.05895)
- the two projections of a block that write into the residual stream: the same, with deviation
  divided by sqrt(2 L)
- norms: the identity (weights 1, or 0 where the norm adds 1 itself, as Gemma's does), biases: 0
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

_RESIDUAL_PROJECTIONS = ("attn.proj.weight", "mlp.proj.weight", "shared_experts.proj.weight")


@torch.no_grad()
def initialize(model: nn.Module, *, seed: int, width: int, layers: int) -> None:
    """Fill every parameter and persistent buffer of `model` in place, whole or sharded.

    Tied parameters are drawn once. `width` and `layers` are d and L of the scheme above.
    """
    std = math.sqrt(2 / (5 * width))
    filled: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in filled:
                continue
            filled.add(id(parameter))
            full_name = f"{prefix}.{name}" if prefix else name
            fill_parameter(
                parameter, _first_value(module, full_name, parameter, (seed, std, layers))
            )
        for buffer in _persistent_buffers(module):
            buffer.zero_()


def _first_value(
    module: nn.Module, name: str, parameter: Tensor, scheme: tuple[int, float, int]
) -> Tensor:
    """Return the whole first value of one parameter, on the CPU, float32."""
    seed, std, layers = scheme
    shape = tuple(parameter.shape)
    if parameter.ndim >= 2:
        if name.endswith(_RESIDUAL_PROJECTIONS) or (".experts." in name and ".proj." in name):
            std = std / math.sqrt(2 * layers)
        value = torch.empty(shape, dtype=torch.float32)
        return value.normal_(0.0, std, generator=_generator(seed, name))
    if name.endswith("bias") or getattr(module, "add_unit_offset", False):
        return torch.zeros(shape)
    return torch.ones(shape)


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def fill_parameter(parameter: Tensor, value: Tensor) -> None:
    """Copy a whole CPU value into a parameter of which this rank may hold only a shard."""
    value = value.to(dtype=parameter.dtype)
    if not isinstance(parameter, DTensor):
        parameter.copy_(value)
        return
    sharded = distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
    parameter.copy_(sharded)


def _persistent_buffers(module: nn.Module) -> list[Tensor]:
    transient = module._non_persistent_buffers_set
    return [b for name, b in module.named_buffers(recurse=False) if name not in transient]
