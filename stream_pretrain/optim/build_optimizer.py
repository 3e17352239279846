"""`OptimizerConfig` -> an optimizer. In: a model where it will train, the config. Out:
`torch.optim.Optimizer`. No steps.

Call it after the model has its final parameters (after FSDP2 and materialisation).
`check_optimizer` says everything that is wrong with the section without a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.optim.muon import MuonWithAdamW
from stream_pretrain.optim.optimizer_spec import optimizer_spec, option_faults, sharding_faults
from stream_pretrain.optim.param_groups import NamedParameter, named_parameters, parameter_groups

if TYPE_CHECKING:
    from stream_pretrain.config.sections import OptimizerConfig

_FUSED_DEVICES = ("cpu", "cuda", "mps")


def check_optimizer(optimizer: OptimizerConfig, *, sharded: bool = False) -> list[Fault]:
    """What cannot be built from this section, all at once; needs no model. `sharded`: for
    parameters that FSDP2 shards."""
    sharding = sharding_faults(optimizer) if sharded else []
    try:
        if optimizer.name == "muon":
            _check_muon(optimizer)
        else:
            optimizer_spec(optimizer)
    except ConfigError as error:
        return [*error.faults, *sharding]
    return sharding


def build_optimizer(model: nn.Module, optimizer: OptimizerConfig) -> Optimizer:
    """The optimizer for every trained parameter of `model`; `ConfigError` with all faults of the
    section."""
    parameters = named_parameters(model)
    if optimizer.name == "muon":
        return _muon(parameters, optimizer)
    recipe = optimizer_spec(optimizer)
    groups = parameter_groups(
        parameters, weight_decay=recipe.weight_decay, decay_on=optimizer.decay_on
    )
    arguments = dict(recipe.arguments)
    if recipe.takes("fused") and "foreach" not in arguments:
        arguments.setdefault("fused", can_fuse(parameters))
    kind: Any = recipe.kind
    made: Optimizer = kind(groups, **arguments)
    return made


def decides_on_device(optimizer: Optimizer) -> bool:
    """Whether `optimizer.found_inf`, a device scalar, makes a step a no-op without the host
    looking."""
    if isinstance(optimizer, MuonWithAdamW):
        return optimizer.decides_on_device
    fused = all(group.get("fused") for group in optimizer.param_groups)
    return fused and isinstance(optimizer, torch.optim.Adam | AdamW)


def can_fuse(parameters: Sequence[NamedParameter]) -> bool:
    """Whether torch's fused kernels take these parameters: floating point, on a device that has
    them."""
    return all(
        entry.parameter.device.type in _FUSED_DEVICES and entry.parameter.is_floating_point()
        for entry in parameters
    )


def _muon(parameters: Sequence[NamedParameter], optimizer: OptimizerConfig) -> Optimizer:
    _check_muon(optimizer)
    matrices = [entry for entry in parameters if entry.role == "hidden"]
    rest = [entry for entry in parameters if entry.role != "hidden"]
    decay, decay_on = optimizer.weight_decay, optimizer.decay_on
    return MuonWithAdamW(
        matrices=parameter_groups(matrices, weight_decay=decay, decay_on=decay_on),
        rest=parameter_groups(rest, weight_decay=decay, decay_on=decay_on),
        # this adjustment makes Muon's updates as large as AdamW's, so that one rate serves both
        muon={"lr": optimizer.lr, "adjust_lr_fn": "match_rms_adamw", **optimizer.options},
        adamw={
            "lr": optimizer.lr,
            "betas": optimizer.betas,
            "eps": optimizer.eps,
            "fused": can_fuse(rest),
        },
    )


def _check_muon(optimizer: OptimizerConfig) -> None:
    kind = getattr(torch.optim, "Muon", None)
    if kind is None:
        remedy = f"torch {torch.__version__} has no Muon; install torch 2.9 or later"
        raise ConfigError.of([Fault(path="optimizer.name", found="muon", remedy=remedy)])
    assert "adjust_lr_fn" in inspect.signature(kind).parameters
    faults = option_faults(optimizer.options, kind)
    if faults:
        raise ConfigError.of(faults)
