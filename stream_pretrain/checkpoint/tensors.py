"""Collect the tensors of a model and its optimizers by name, under DDP, FSDP2 or neither.

The results are references: nothing is copied, written or sent. Names are the same under every
strategy, and an optimizer's tensors are named after their parameter, so the parameter groups may be
different at the next start. Group settings (learning rates, weight decay) come from the
configuration, never from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stream_pretrain.errors import CheckpointError

_WRAPPER_ATTRIBUTES = ("_forward_module", "_orig_mod")
_WRAPPER_PARTS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})


@dataclass(frozen=True, kw_only=True)
class NamedTensors:
    """References to the tensors of a model and its optimizers, by name.

    `tied` maps the second name of a shared tensor to the first. `scalars` are the optimizers'
    values that are plain numbers.
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    tied: Mapping[str, str]
    scalars: Mapping[str, int | float | bool]


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, else the tensor itself; never a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, a compiled module or Fabric's wrapper."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
            continue
        inner = next((getattr(model, a) for a in _WRAPPER_ATTRIBUTES if a in model._modules), None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def clean_name(name: str) -> str:
    """Return a parameter's name without the parts that `torch.compile` and wrappers insert."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)


def collect_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> NamedTensors:
    """Return everything of model and optimizers that a checkpoint holds, as references."""
    inner = unwrapped(model)
    kept, tied = _model_tensors(inner)
    tensors, scalars = _optimizer_values(inner, optimizers)
    return NamedTensors(model=kept, optimizer=tensors, tied=tied, scalars=scalars)


def _model_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    for raw_name, value in model.state_dict().items():
        name = clean_name(raw_name)
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"{name}: a {type(value).__name__} in the model's state, only tensors can be "
                "saved. Keep it out of the module's state_dict."
            )
        shard = local_shard(value)
        memory = (shard.data_ptr(), shard.dtype, tuple(value.shape), tuple(shard.stride()))
        if shard.numel() and memory in first_name:
            tied[name] = first_name[memory]
            continue
        first_name[memory] = name
        kept[name] = value
    return kept, tied


def _optimizer_values(
    model: nn.Module, optimizers: Sequence[Optimizer]
) -> tuple[dict[str, Tensor], dict[str, int | float | bool]]:
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, int | float | bool] = {}
    for name, parameter in _parameter_names(model).items():
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                full = f"{name}.{key}"
                if isinstance(value, Tensor):
                    tensors[full] = value
                elif isinstance(value, (bool, int, float)):
                    scalars[full] = value
                elif value is not None:
                    raise CheckpointError(
                        f"{full}: the optimizer keeps a {type(value).__name__}, only tensors and "
                        "numbers can be saved. Choose another optimizer."
                    )
    return tensors, scalars


def _parameter_names(model: nn.Module) -> dict[str, nn.Parameter]:
    return {clean_name(name): parameter for name, parameter in model.named_parameters()}


def group_settings(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """Return the plain settings of every parameter group, for people to read; never loaded."""
    plain = (bool, int, float, str, type(None))
    return [
        {k: v for k, v in group.items() if k != "params" and isinstance(v, plain)}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def drop_state_without_values(
    model: nn.Module, optimizers: Sequence[Optimizer], names: frozenset[str]
) -> None:
    """Delete the state of parameters for which the checkpoint has none.

    They had not been updated yet when it was written.
    """
    for name, parameter in _parameter_names(unwrapped(model)).items():
        for optimizer in optimizers:
            state = optimizer.state.get(parameter)
            if state and not any(f"{name}.{key}" in names for key in state):
                del optimizer.state[parameter]


def set_scalars(
    model: nn.Module, optimizers: Sequence[Optimizer], scalars: Mapping[str, int | float | bool]
) -> None:
    """Set the optimizers' values that are plain numbers."""
    for name, parameter in _parameter_names(unwrapped(model)).items():
        for optimizer in optimizers:
            state = optimizer.state.get(parameter, {})
            for key in state:
                if f"{name}.{key}" in scalars:
                    state[key] = scalars[f"{name}.{key}"]
