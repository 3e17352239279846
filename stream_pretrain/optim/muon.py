"""Muon for hidden matrices and AdamW for everything else, as one optimizer. In: parameter groups.
Out: `MuonWithAdamW`.

Muon orthogonalises the momentum of a matrix (Jordan et al. 2024; "Muon is Scalable for LLM
Training", arXiv 2502.16982). Both halves are torch's own classes. They share this object's groups
and state, so `state_dict`, `load_state_dict` and torch.distributed.checkpoint see an ordinary
optimizer with state by parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

Groups = list[dict[str, Any]]


class MuonWithAdamW(Optimizer):
    """One optimizer; each group's `algorithm` says which half updates it.

    `found_inf`: set to a device scalar, a step with 1.0 in it leaves weights and state as they
    were, without the host looking (AdamW's fused kernels do the same); this needs fused AdamW.
    """

    found_inf: Tensor | None = None
    decides_on_device: bool

    def __init__(
        self,
        *,
        matrices: Groups,
        rest: Groups,
        muon: Mapping[str, Any],
        adamw: Mapping[str, Any],
    ) -> None:
        muon_class: Any = torch.optim.Muon
        for group in matrices:
            group["algorithm"] = "muon"
        for group in rest:
            group["algorithm"] = "adamw"
        self._muon: Optimizer = muon_class(matrices, **muon)
        self._adamw: Optimizer = AdamW(rest, **adamw)
        self.decides_on_device = bool(adamw.get("fused"))
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient. A closure is evaluated once, before."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._share_state()
        if self.found_inf is None:
            self._muon.step()
        else:
            self._step_matrices_unless(self.found_inf)
        self._adamw.step()
        return loss

    def _share_state(self) -> None:
        """`load_state_dict` replaces groups and state, so the halves are given them before each
        step."""
        for half, algorithm in ((self._muon, "muon"), (self._adamw, "adamw")):
            half.param_groups = [g for g in self.param_groups if g["algorithm"] == algorithm]
            half.state = self.state
        adamw: Any = self._adamw
        adamw.found_inf = self.found_inf

    def _step_matrices_unless(self, found_inf: Tensor) -> None:
        """Muon, one matrix at a time, each put back as it was where `found_inf` is set: a matrix of
        extra memory."""
        skip = found_inf.bool()
        for group in self._muon.param_groups:
            parameters = group["params"]
            try:
                for parameter in parameters:
                    group["params"] = [parameter]
                    self._step_one(parameter, skip)
            finally:
                group["params"] = parameters

    def _step_one(self, parameter: Tensor, skip: Tensor) -> None:
        if parameter.grad is None:
            return
        groups = self._muon.param_groups
        before = parameter.clone()
        momentum = self.state[parameter].get("momentum_buffer")
        momentum_before = None if momentum is None else momentum.clone()
        self._muon.param_groups = [g for g in groups if g["params"] and g["params"][0] is parameter]
        try:
            self._muon.step()
        finally:
            self._muon.param_groups = groups
        _restore(parameter, before, skip)
        after = self.state[parameter]["momentum_buffer"]
        _restore(
            after, torch.zeros_like(after) if momentum_before is None else momentum_before, skip
        )


def _restore(tensor: Tensor, before: Tensor, skip: Tensor) -> None:
    """`tensor = before` where `skip`, without the host looking; on each rank's own shard."""
    local, old = _local(tensor), _local(before)
    local.copy_(torch.where(_local(skip), old, local))


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
