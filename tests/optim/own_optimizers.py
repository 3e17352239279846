"""Optimizers that torch does not have, written as a user would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stream_pretrain.config.sections import OptimizerConfig
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.optim.param_groups import NamedParameter, parameter_groups


class Lion(Optimizer):
    """Sign of a momentum (arXiv 2302.06675). It honours `found_inf`."""

    found_inf: Tensor | None = None
    decides_on_device = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        go = 1.0 if self.found_inf is None else 1.0 - self.found_inf
        for group in self.param_groups:
            fast, slow = group["betas"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                gradient = gradient.nan_to_num()
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                    state["steps"] = 0
                state["steps"] += 1
                momentum = state["momentum"]
                update = (momentum * fast + gradient * (1 - fast)).sign()
                update += parameter * group["weight_decay"]
                parameter.sub_(update * (group["lr"] * go))
                momentum.add_((gradient - momentum) * ((1 - slow) * go))


def lion(parameters: Sequence[NamedParameter], optimizer: OptimizerConfig) -> Optimizer:
    """A function of one's own: it decides on the groups."""
    if unknown := sorted(set(optimizer.options) - {"slow"}):
        fault = Fault(path=f"optimizer.options.{unknown[0]}", found="", remedy="lion has slow only")
        raise ConfigError.of([fault])
    groups = parameter_groups(
        parameters, weight_decay=optimizer.weight_decay, decay_on=optimizer.decay_on
    )
    slow = optimizer.options.get("slow", 0.99)
    return Lion(groups, lr=optimizer.lr, betas=(optimizer.betas[0], slow))


def only_hidden(parameters: Sequence[NamedParameter], optimizer: OptimizerConfig) -> Optimizer:
    return Lion([e.parameter for e in parameters if e.role == "hidden"], lr=optimizer.lr)


def nothing(_parameters: Sequence[NamedParameter], _optimizer: OptimizerConfig) -> None:
    return None


def raises(_parameters: Sequence[NamedParameter], _optimizer: OptimizerConfig) -> Optimizer:
    raise KeyError("slow")
