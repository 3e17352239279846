"""Model and optimizers <-> named tensors. In: torch objects, DDP or FSDP2 or plain. Out: references
to live tensors.

Names are the same under every strategy, and an optimizer's tensors are named after their parameter,
so parameter groups may be cut differently at the next start. Group settings (rates, decay) come
from the configuration, never from a checkpoint. Does not copy, write or communicate.
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
    """Live tensors by name. `tied` maps a second name of a storage to the first; `scalars` are
    plain optimizer values.
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    tied: Mapping[str, str]
    scalars: Mapping[str, int | float | bool]


def local_shard(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor, the tensor itself otherwise; never a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside DDP, a compiled module or a launcher's wrapper."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
            continue
        inner = next((getattr(model, a) for a in _WRAPPER_ATTRIBUTES if a in model._modules), None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def clean_name(name: str) -> str:
    """A parameter's name without the parts that compiling or recomputing wrappers put in."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)


def collect_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> NamedTensors:
    """Everything that a checkpoint holds of model and optimizers, as references."""
    inner = unwrapped(model)
    kept, tied = _model_tensors(inner)
    tensors, scalars = _optimizer_values(inner, optimizers)
    return NamedTensors(model=kept, optimizer=tensors, tied=tied, scalars=scalars)


def _model_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first_of: dict[tuple[Any, ...], str] = {}
    for raw_name, value in model.state_dict().items():
        name = clean_name(raw_name)
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"{name}: a {type(value).__name__} in the model's state, only tensors can be "
                "saved. Keep it out of the module's state_dict."
            )
        part = local_shard(value)
        place = (part.data_ptr(), part.dtype, tuple(value.shape), tuple(part.stride()))
        if part.numel() and place in first_of:
            tied[name] = first_of[place]
            continue
        first_of[place] = name
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
    """Plain settings of every parameter group, written for the reader; never loaded."""
    plain = (bool, int, float, str, type(None))
    return [
        {k: v for k, v in group.items() if k != "params" and isinstance(v, plain)}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def drop_untouched(
    model: nn.Module, optimizers: Sequence[Optimizer], names: frozenset[str]
) -> None:
    """Forget the state of parameters that the checkpoint has none for: they had not been updated
    yet.
    """
    for name, parameter in _parameter_names(unwrapped(model)).items():
        for optimizer in optimizers:
            state = optimizer.state.get(parameter)
            if state and not any(f"{name}.{key}" in names for key in state):
                del optimizer.state[parameter]


def set_scalars(
    model: nn.Module, optimizers: Sequence[Optimizer], scalars: Mapping[str, int | float | bool]
) -> None:
    """Put plain optimizer values back."""
    for name, parameter in _parameter_names(unwrapped(model)).items():
        for optimizer in optimizers:
            state = optimizer.state.get(parameter, {})
            for key in state:
                if f"{name}.{key}" in scalars:
                    state[key] = scalars[f"{name}.{key}"]
