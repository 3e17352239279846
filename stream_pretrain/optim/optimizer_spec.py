"""Derive the arguments of one optimizer class from the `optimizer` section.

A setting that is not at its default and that the class does not know is a fault. A setting at its
default keeps the class's own default, except for AdamW, whose defaults are the configuration's.
Creates no optimizer.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from stream_pretrain.errors import ConfigError, Fault

if TYPE_CHECKING:
    from stream_pretrain.config.sections import OptimizerConfig

_SET_BY_SECTION = ("params", "lr", "weight_decay", "decoupled_weight_decay")


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """A class and its keyword arguments, without `params` and weight decay.

    `weight_decay` is None where the class has no decoupled weight decay.
    """

    optimizer_class: type[Optimizer]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weight_decay: float | None

    def takes(self, argument: str) -> bool:
        """Return whether the class has this argument."""
        return argument in arguments_of(self.optimizer_class)


def optimizer_spec(
    optimizer: OptimizerConfig, optimizer_class: type[Optimizer], *, decoupled_decay: bool
) -> OptimizerSpec:
    """Return the class with its arguments from the section.

    `decoupled_decay`: its `weight_decay` shrinks weights by rate x decay, apart from the gradient.
    A class with an argument `decoupled_weight_decay` is told to do so.

    Raises:
        ConfigError: every setting that the class does not know.
    """
    name = optimizer_class.__name__
    accepted = arguments_of(optimizer_class)
    faults = option_faults(optimizer.options, optimizer_class)
    arguments: dict[str, Any] = {"lr": optimizer.lr}
    for key, of_type in (("betas", tuple), ("eps", float)):
        if optimizer_class is not torch.optim.AdamW and not _is_given(optimizer, key):
            continue
        if isinstance(accepted.get(key), of_type):
            arguments[key] = getattr(optimizer, key)
        else:
            faults.append(_unknown_setting(optimizer, key, name))
    decoupled = decoupled_decay or "decoupled_weight_decay" in accepted
    if not decoupled and optimizer.weight_decay and _is_given(optimizer, "weight_decay"):
        faults.append(_unknown_setting(optimizer, "weight_decay", name))
    if "decoupled_weight_decay" in accepted:
        arguments["decoupled_weight_decay"] = True
    if faults:
        raise ConfigError.of(faults)
    return OptimizerSpec(
        optimizer_class=optimizer_class,
        arguments={**arguments, **optimizer.options},
        weight_decay=optimizer.weight_decay if decoupled else None,
    )


def arguments_of(optimizer_class: type[Optimizer]) -> dict[str, Any]:
    """Return the names of a class's arguments with their defaults."""
    parameters = inspect.signature(optimizer_class).parameters
    return {name: p.default for name, p in parameters.items()}


def option_faults(options: Mapping[str, Any], optimizer_class: type[Optimizer]) -> list[Fault]:
    """Return a fault for each option that the class does not know or that another key sets."""
    accepted = arguments_of(optimizer_class)
    faults = []
    for key, value in options.items():
        if key in accepted and key not in _SET_BY_SECTION:
            continue
        if key in _SET_BY_SECTION:
            remedy = "is set by the optimizer section itself; leave it out of options"
        else:
            candidates = [a for a in accepted if a not in _SET_BY_SECTION]
            close = difflib.get_close_matches(key, candidates, n=1)
            remedy = f"{optimizer_class.__name__} has no such argument"
            remedy += f"; did you mean {close[0]}?" if close else ""
        faults.append(Fault(path=f"optimizer.options.{key}", found=repr(value), remedy=remedy))
    return faults


def _is_given(optimizer: OptimizerConfig, key: str) -> bool:
    """Return whether a key differs from its default.

    A resolved configuration, which has every key, is accepted as well.
    """
    return bool(getattr(optimizer, key) != type(optimizer).model_fields[key].default)


def _unknown_setting(optimizer: OptimizerConfig, key: str, class_name: str) -> Fault:
    remedy = {
        "betas": f"{class_name} has no betas; leave it out",
        "eps": f"{class_name} has no single eps; leave it out or set optimizer.options",
        "weight_decay": f"{class_name} has no decoupled weight decay; set it to 0 or leave it out",
    }[key]
    return Fault(path=f"optimizer.{key}", found=repr(getattr(optimizer, key)), remedy=remedy)
