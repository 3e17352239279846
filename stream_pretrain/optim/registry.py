"""The optimizers that `optimizer.name` may name: one entry each.

A new optimizer is one entry of `OPTIMIZERS`. For a class with torch's usual arguments,
`class_entry` derives everything; for anything else, write `check` and `build`, as Muon does.
Classes of `torch.optim` by path need no entry; `TORCH_CLASSES` lists what is special about some.

User code needs no entry either: `optimizer.name: "module:name"` names a class or a function.

- A class derived from `torch.optim.Optimizer` is treated as those of `torch.optim` are: `lr`,
  `betas`, `eps` and `optimizer.options` become its arguments, and unknown ones are faults.
- A function is called as `function(parameters, optimizer)` with the trained parameters
  (`NamedParameter`: name, tensor, role) and the `optimizer` section (`OptimizerConfig`), and
  returns a `torch.optim.Optimizer`. `parameter_groups` makes the groups with and without weight
  decay::

      def lion(parameters, optimizer):
          groups = parameter_groups(
              parameters, weight_decay=optimizer.weight_decay, decay_on=optimizer.decay_on
          )
          return Lion(groups, lr=optimizer.lr, **optimizer.options)

The trainer sets `lr` of every group before each step. The state of each parameter must be tensors
and numbers, so that a checkpoint can hold it. An optimizer whose attribute `decides_on_device` is
true must leave weights and state unchanged where its attribute `found_inf`, a device scalar, is
1.0; for others the host waits for the gradient norm and leaves the step out.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.optim import Optimizer

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.optim.muon import build_muon, check_muon
from stream_pretrain.optim.optimizer_spec import arguments_of, optimizer_spec
from stream_pretrain.optim.param_groups import NamedParameter, can_fuse, parameter_groups
from stream_pretrain.user_code import call_user_code, is_user_code, load_user_code

if TYPE_CHECKING:
    from stream_pretrain.config.sections import OptimizerConfig

BuildFunction: TypeAlias = "Callable[[Sequence[NamedParameter], OptimizerConfig], Optimizer]"

_PREFIX = "torch.optim."


def _declares_device_decision(optimizer: Optimizer) -> bool:
    return bool(getattr(optimizer, "decides_on_device", False))


@dataclass(frozen=True, kw_only=True)
class OptimizerEntry:
    """One optimizer.

    `name`: the value of `optimizer.name`. `check`: returns every fault of the section, without a
    model. `build`: makes the parameter groups and the optimizer. `shardable`: its step works on
    parameters that FSDP2 shards. `decides_on_device`: whether the built optimizer honours
    `found_inf`, so that the host need not wait for the gradient norm; by default its attribute of
    that name says so.
    """

    name: str
    check: Callable[[OptimizerConfig], list[Fault]]
    build: BuildFunction
    shardable: bool = True
    decides_on_device: Callable[[Optimizer], bool] = _declares_device_decision


@dataclass(frozen=True, kw_only=True)
class ClassFacts:
    """What the signature of an optimizer class does not tell.

    `refused`: why the class cannot be used (empty: it can). `decoupled_decay`: its `weight_decay`
    shrinks weights by rate x decay. `decides_when_fused`: its fused kernels honour `found_inf`.
    """

    refused: str = ""
    shardable: bool = True
    decoupled_decay: bool = False
    decides_when_fused: bool = False


def class_entry(name: str, optimizer_class: type[Optimizer], facts: ClassFacts) -> OptimizerEntry:
    """Return the entry of a class whose arguments are those of torch's optimizers."""
    return OptimizerEntry(
        name=name,
        check=partial(_check_class, optimizer_class, facts),
        build=partial(_build_class, optimizer_class, facts),
        shardable=facts.shardable,
        decides_on_device=_is_fused if facts.decides_when_fused else _declares_device_decision,
    )


def _check_class(
    optimizer_class: type[Optimizer], facts: ClassFacts, optimizer: OptimizerConfig
) -> list[Fault]:
    try:
        optimizer_spec(optimizer, optimizer_class, decoupled_decay=facts.decoupled_decay)
    except ConfigError as error:
        return list(error.faults)
    return []


def _build_class(
    optimizer_class: type[Optimizer],
    facts: ClassFacts,
    parameters: Sequence[NamedParameter],
    optimizer: OptimizerConfig,
) -> Optimizer:
    spec = optimizer_spec(optimizer, optimizer_class, decoupled_decay=facts.decoupled_decay)
    groups = parameter_groups(
        parameters, weight_decay=spec.weight_decay, decay_on=optimizer.decay_on
    )
    arguments = dict(spec.arguments)
    if spec.takes("fused") and "foreach" not in arguments:
        arguments.setdefault("fused", can_fuse(parameters))
    construct: Any = optimizer_class
    made: Optimizer = construct(groups, **arguments)
    return made


def _is_fused(optimizer: Optimizer) -> bool:
    return all(group.get("fused") for group in optimizer.param_groups)


TORCH_CLASSES = {
    "AdamW": ClassFacts(decoupled_decay=True, decides_when_fused=True),
    "Adam": ClassFacts(decides_when_fused=True),
    "SGD": ClassFacts(decoupled_decay=True),
    # torch 2.14 has no sharding rule for an in-place operation of these two
    "Adafactor": ClassFacts(decoupled_decay=True, shardable=False),
    "Rprop": ClassFacts(shardable=False),
    "LBFGS": ClassFacts(refused="it evaluates the loss several times a step"),
    "SparseAdam": ClassFacts(refused="it takes sparse gradients only"),
    "Optimizer": ClassFacts(refused="it is the base class"),
}
"""Classes of `torch.optim` that differ from the defaults of `ClassFacts`."""

OPTIMIZERS: tuple[OptimizerEntry, ...] = (
    class_entry("adamw", torch.optim.AdamW, TORCH_CLASSES["AdamW"]),
    OptimizerEntry(name="muon", check=check_muon, build=build_muon),
)
"""The optimizers that have a name of their own."""


def find_optimizer(name: str) -> OptimizerEntry:
    """Return the entry for a value of `optimizer.name`.

    Raises:
        ConfigError: there is no such optimizer, or it cannot be used; says what is near.
    """
    for entry in OPTIMIZERS:
        if entry.name == name:
            return entry
    return _user_entry(name) if is_user_code(name) else _torch_entry(name)


def _torch_entry(name: str) -> OptimizerEntry:
    class_name = name.removeprefix(_PREFIX)
    named: Any = getattr(torch.optim, class_name, None) if name.startswith(_PREFIX) else None
    if not _is_optimizer_class(named):
        raise _refused(name, _unknown_name_remedy(class_name))
    facts = TORCH_CLASSES.get(class_name, ClassFacts())
    if facts.refused:
        raise _refused(name, f"cannot be used here: {facts.refused}; choose another class")
    if class_name == "Muon":
        remedy = "it takes matrices only; write muon, which gives the rest of the model to AdamW"
        raise _refused(name, remedy)
    return class_entry(name, named, facts)


def _unknown_name_remedy(class_name: str) -> str:
    known = {
        n.lower(): _PREFIX + n
        for n, value in vars(torch.optim).items()
        if _is_optimizer_class(value) and not TORCH_CLASSES.get(n, ClassFacts()).refused
    }
    close = difflib.get_close_matches(class_name.lower(), known, n=1)
    hint = f"did you mean {known[close[0]]}?" if close else "see torch.optim for its classes"
    names = ", ".join(entry.name for entry in OPTIMIZERS)
    return (
        f"must be {names} or a class of torch.optim by path, or module:name for your own code; "
        f"{hint}"
    )


def _user_entry(name: str) -> OptimizerEntry:
    loaded: Any = load_user_code(name, path="optimizer.name")
    if _is_optimizer_class(loaded):
        decays = "weight_decay" in arguments_of(loaded)
        entry = class_entry(name, loaded, ClassFacts(decoupled_decay=decays))
        check, build = entry.check, entry.build
    else:
        check, build = _no_faults, loaded
    return OptimizerEntry(
        name=name,
        check=check,
        build=partial(_build_user_optimizer, name, build),
    )


def _no_faults(_optimizer: OptimizerConfig) -> list[Fault]:
    """A function of the user's says what is wrong when it is called."""
    return []


def _build_user_optimizer(
    name: str,
    build: BuildFunction,
    parameters: Sequence[NamedParameter],
    optimizer: OptimizerConfig,
) -> Optimizer:
    """Call the user's code and check that it returns an optimizer for exactly these parameters."""
    made: Any = call_user_code(
        lambda: build(parameters, optimizer), name=name, path="optimizer.name"
    )
    if not isinstance(made, Optimizer):
        raise _refused(
            name, f"returned a {type(made).__name__}, must return a torch.optim.Optimizer"
        )
    updated = {id(p) for group in made.param_groups for p in group["params"]}
    left_out = [entry.name for entry in parameters if id(entry.parameter) not in updated]
    if left_out:
        raise _refused(
            name,
            f"its optimizer leaves out {len(left_out)} of the {len(parameters)} trained "
            f"parameters, such as {left_out[0]}; give it all of them, or set requires_grad to "
            "False in the model",
        )
    return made


def _is_optimizer_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Optimizer)


def _refused(name: str, remedy: str) -> ConfigError:
    return ConfigError.of([Fault(path="optimizer.name", found=repr(name), remedy=remedy)])
