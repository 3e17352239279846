"""`OptimizerConfig` -> an optimizer. In: a model where it will train, the config. Out:
`torch.optim.Optimizer`. No steps.

Call it after the model has its final parameters (after FSDP2 and materialisation).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stream_pretrain.optim.groups import NamedParameter, named_parameters, parameter_groups


def build_optimizer(model: nn.Module, optimizer: Any) -> Optimizer:
    """The optimizer for every trained parameter of `model`. `optimizer` is an `OptimizerConfig`."""
    parameters = named_parameters(model)
    decay_embeddings = bool(getattr(optimizer, "decay_embeddings", False))
    groups = parameter_groups(
        parameters, weight_decay=optimizer.weight_decay, decay_embeddings=decay_embeddings
    )
    return torch.optim.AdamW(
        groups, lr=optimizer.lr, betas=tuple(optimizer.betas), fused=can_fuse(parameters)
    )


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Give every group the rate of this step, times the group's own factor (`rate_scale`, 1 unless
    set)."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate_scale", 1.0)


def can_fuse(parameters: list[NamedParameter]) -> bool:
    """Whether torch's fused kernels take these parameters: floating point, on a CPU or a GPU."""
    return all(
        entry.parameter.device.type in ("cpu", "cuda") and entry.parameter.is_floating_point()
        for entry in parameters
    )
