"""Allocate an optimizer's state before its first step, so that a checkpoint can be loaded into it.

Every trainable parameter gets state tensors of the right shape, type, device and sharding, with
arbitrary values. The parameters themselves may change: a checkpoint is about to overwrite them.

An optimizer allocates its own state in its first step. A whole step takes as long as training does
(five seconds for 110 million parameters on two cores), so only one small parameter of each kind is
stepped, and the state of the others is allocated like that parameter's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

_Kind: TypeAlias = "tuple[int, int, torch.dtype]"


def init_optimizer_state(optimizer: Optimizer) -> None:
    """Replace the optimizer's state by a newly allocated one."""
    kinds = _parameters_by_kind(optimizer)
    samples = {kind: min(parameters, key=Tensor.numel) for kind, parameters in kinds.items()}
    _step_on_zeros(optimizer, samples.values())
    if not all(_is_plain(optimizer, sample) for sample in samples.values()):
        _step_on_zeros(optimizer, [p for parameters in kinds.values() for p in parameters])
        return
    for kind, parameters in kinds.items():
        template = dict(optimizer.state.get(samples[kind], {}))
        for parameter in parameters:
            if template and parameter is not samples[kind]:
                optimizer.state[parameter] = {
                    key: _like(value, samples[kind], parameter) for key, value in template.items()
                }


def _parameters_by_kind(optimizer: Optimizer) -> dict[_Kind, list[Tensor]]:
    """Return trainable parameters by kind (group, number of dimensions, type): one state each."""
    kinds: dict[_Kind, list[Tensor]] = {}
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.requires_grad:
                kinds.setdefault((index, parameter.ndim, parameter.dtype), []).append(parameter)
    return kinds


def _is_plain(optimizer: Optimizer, parameter: Tensor) -> bool:
    """Return True when each state tensor has the parameter's shape or is a single number."""
    values = optimizer.state.get(parameter, {}).values()
    return all(v.shape in (parameter.shape, ()) for v in values if isinstance(v, Tensor))


def _like(value: Any, sample: Tensor, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.shape == sample.shape:
        return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
    return value.clone()


def _step_on_zeros(optimizer: Optimizer, parameters: Collection[Tensor]) -> None:
    """Take one step with zero gradients, zero learning rate and zero weight decay."""
    optimizer.state.clear()
    optimizer.zero_grad(set_to_none=True)
    saved: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        saved.append({key: group[key] for key in ("lr", "weight_decay") if key in group})
        for key, value in saved[-1].items():
            group[key] = torch.zeros_like(value) if isinstance(value, Tensor) else 0.0
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    finally:
        for group, values in zip(optimizer.param_groups, saved, strict=True):
            group.update(values)
        optimizer.zero_grad(set_to_none=True)
