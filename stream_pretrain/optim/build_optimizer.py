"""Build the optimizer that the `optimizer` section names.

`check_optimizer` returns every fault of the section and needs no model. `build_optimizer` is called
once the model has its final parameters (after FSDP2 has sharded them and their storage exists).
Which optimizers there are, `registry` says. Makes no step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.optim.param_groups import named_parameters
from stream_pretrain.optim.registry import find_optimizer

if TYPE_CHECKING:
    from stream_pretrain.config.sections import OptimizerConfig


def check_optimizer(optimizer: OptimizerConfig, *, sharded: bool = False) -> list[Fault]:
    """Return every fault of the section; needs no model.

    `sharded`: the optimizer must update parameters that FSDP2 shards.
    """
    try:
        entry = find_optimizer(optimizer.name)
    except ConfigError as error:
        return list(error.faults)
    faults = entry.check(optimizer)
    if sharded and not entry.shardable:
        remedy = (
            "torch cannot do its step on sharded parameters; use compute.strategy ddp, or adamw"
        )
        faults.append(Fault(path="optimizer.name", found=repr(optimizer.name), remedy=remedy))
    return faults


def build_optimizer(model: nn.Module, optimizer: OptimizerConfig) -> Optimizer:
    """Return the optimizer for every trained parameter of `model`.

    Raises:
        ConfigError: every fault of the section.
    """
    entry = find_optimizer(optimizer.name)
    if faults := entry.check(optimizer):
        raise ConfigError.of(faults)
    made = entry.build(named_parameters(model), optimizer)
    vars(made)["decides_on_device"] = entry.decides_on_device(made)
    return made


def decides_on_device(optimizer: Optimizer) -> bool:
    """Return whether `optimizer.found_inf`, a device scalar, makes a step a no-op.

    The host then need not wait for the gradient norm. False for an optimizer that
    `build_optimizer` did not build.
    """
    return bool(getattr(optimizer, "decides_on_device", False))
