"""`optimizer.name` -> a class of torch and the arguments it takes. In: `OptimizerConfig`. Out:
`OptimizerSpec`, or faults.

A setting other than its default that the class does not know is a fault. Settings at their default
keep the class's own default, except for AdamW, whose defaults are the configuration's. Makes no
optimizer.
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

_PREFIX = "torch.optim."
_OURS = ("params", "lr", "weight_decay", "decoupled_weight_decay")
_CANNOT = {
    "LBFGS": "it evaluates the loss several times a step",
    "SparseAdam": "it takes sparse gradients only",
    "Optimizer": "it is the base class",
}
_CANNOT_SHARD = ("Adafactor", "Rprop")
"""Classes whose step torch cannot do on sharded parameters (tried with torch 2.14: no placement for
an in-place operation)."""
_DECAY_AT_THE_RATE = ("AdamW", "SGD", "Adafactor", "Muon")
"""Classes whose `weight_decay` shrinks weights by rate x decay; Adam and kin do with
`decoupled_weight_decay`."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """A class and its keyword arguments, `params` and decay aside. `weight_decay` None: the class
    has none."""

    kind: type[Optimizer]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weight_decay: float | None

    def takes(self, argument: str) -> bool:
        """Whether the class has this argument."""
        return argument in _arguments_of(self.kind)


def optimizer_spec(optimizer: OptimizerConfig) -> OptimizerSpec:
    """The class for `optimizer.name`, with its arguments; `ConfigError` with all faults. Not for
    `muon`."""
    kind = _class_named(optimizer.name)
    accepted = _arguments_of(kind)
    faults = [*_option_faults(optimizer.options, accepted, kind.__name__)]
    arguments: dict[str, Any] = {"lr": optimizer.lr}
    for name, of_type in (("betas", tuple), ("eps", float)):
        if kind is not torch.optim.AdamW and not _is_given(optimizer, name):
            continue
        if isinstance(accepted.get(name), of_type):
            arguments[name] = getattr(optimizer, name)
        else:
            faults.append(_not_taken(optimizer, name, kind.__name__))
    decoupled = kind.__name__ in _DECAY_AT_THE_RATE or "decoupled_weight_decay" in accepted
    if not decoupled and optimizer.weight_decay and _is_given(optimizer, "weight_decay"):
        faults.append(_not_taken(optimizer, "weight_decay", kind.__name__))
    if "decoupled_weight_decay" in accepted:
        arguments["decoupled_weight_decay"] = True
    if faults:
        raise ConfigError.of(faults)
    return OptimizerSpec(
        kind=kind,
        arguments={**arguments, **optimizer.options},
        weight_decay=optimizer.weight_decay if decoupled else None,
    )


def _is_given(optimizer: OptimizerConfig, key: str) -> bool:
    """Whether a key differs from its default: a resolved configuration, which has every key, is
    accepted as well."""
    return bool(getattr(optimizer, key) != type(optimizer).model_fields[key].default)


def _class_named(name: str) -> type[Optimizer]:
    if name == "adamw":
        return torch.optim.AdamW
    short = name.removeprefix(_PREFIX)
    kind = getattr(torch.optim, short, None) if name.startswith(_PREFIX) else None
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        close = difflib.get_close_matches(short.lower(), [n.lower() for n in _class_names()], n=1)
        known = {n.lower(): _PREFIX + n for n in _class_names()}
        hint = f"did you mean {known[close[0]]}?" if close else "see torch.optim for its classes"
        remedy = f"must be adamw, muon or a class of torch.optim by path; {hint}"
        raise ConfigError.of([Fault(path="optimizer.name", found=repr(name), remedy=remedy)])
    if short in _CANNOT:
        remedy = f"cannot be used here: {_CANNOT[short]}; choose another class"
        raise ConfigError.of([Fault(path="optimizer.name", found=repr(name), remedy=remedy)])
    if kind.__name__ == "Muon":
        remedy = "it takes matrices only; write muon, which gives the rest of the model to AdamW"
        raise ConfigError.of([Fault(path="optimizer.name", found=repr(name), remedy=remedy)])
    return kind


def _class_names() -> list[str]:
    return [
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, Optimizer) and name not in _CANNOT
    ]


def _arguments_of(kind: type[Optimizer]) -> dict[str, Any]:
    """Argument names and their defaults."""
    parameters = inspect.signature(kind).parameters
    return {name: p.default for name, p in parameters.items()}


def sharding_faults(optimizer: OptimizerConfig) -> list[Fault]:
    """What keeps this optimizer from updating parameters that are sharded."""
    if optimizer.name.removeprefix(_PREFIX) not in _CANNOT_SHARD:
        return []
    remedy = "torch cannot do its step on sharded parameters; use compute.strategy ddp, or adamw"
    return [Fault(path="optimizer.name", found=repr(optimizer.name), remedy=remedy)]


def option_faults(options: Mapping[str, Any], kind: type[Optimizer]) -> list[Fault]:
    """Options that the class does not know, or that another key of the section sets."""
    return _option_faults(options, _arguments_of(kind), kind.__name__)


def _option_faults(
    options: Mapping[str, Any], accepted: Mapping[str, Any], class_name: str
) -> list[Fault]:
    faults = []
    for key, value in options.items():
        if key in accepted and key not in _OURS:
            continue
        path = f"optimizer.options.{key}"
        if key in _OURS:
            remedy = "is set by the optimizer section itself; leave it out of options"
        else:
            close = difflib.get_close_matches(key, [a for a in accepted if a not in _OURS], n=1)
            remedy = f"{class_name} has no such argument"
            remedy += f"; did you mean {close[0]}?" if close else ""
        faults.append(Fault(path=path, found=repr(value), remedy=remedy))
    return faults


def _not_taken(optimizer: OptimizerConfig, key: str, class_name: str) -> Fault:
    remedy = {
        "betas": f"{class_name} has no betas; leave it out",
        "eps": f"{class_name} has no single eps; leave it out or set optimizer.options",
        "weight_decay": f"{class_name} has no decoupled weight decay; set it to 0 or leave it out",
    }[key]
    return Fault(path=f"optimizer.{key}", found=repr(getattr(optimizer, key)), remedy=remedy)
