"""Muon for hidden matrices and AdamW for everything else, as one optimizer.

Muon orthogonalises the momentum of a matrix (Jordan et al. 2024; "Muon is Scalable for LLM
Training", arXiv 2502.16982). Both halves are torch's own classes. They share this object's groups
and state, so `state_dict`, `load_state_dict` and torch.distributed.checkpoint see an ordinary
optimizer with state by parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from stream_pretrain.errors import Fault
from stream_pretrain.optim.optimizer_spec import option_faults
from stream_pretrain.optim.param_groups import NamedParameter, can_fuse, parameter_groups

if TYPE_CHECKING:
    from stream_pretrain.config.sections import OptimizerConfig

Groups = list[dict[str, Any]]


def check_muon(optimizer: OptimizerConfig) -> list[Fault]:
    """Return every fault of the section for `optimizer.name: muon`."""
    muon_class = getattr(torch.optim, "Muon", None)
    if muon_class is None:
        remedy = f"torch {torch.__version__} has no Muon; install torch 2.9 or later"
        return [Fault(path="optimizer.name", found="muon", remedy=remedy)]
    assert "adjust_lr_fn" in inspect.signature(muon_class).parameters
    return option_faults(optimizer.options, muon_class)


def build_muon(parameters: Sequence[NamedParameter], optimizer: OptimizerConfig) -> MuonWithAdamW:
    """Return Muon for the hidden matrices and AdamW for the other parameters."""
    matrices = [entry for entry in parameters if entry.role == "hidden"]
    others = [entry for entry in parameters if entry.role != "hidden"]
    decay, decay_on = optimizer.weight_decay, optimizer.decay_on
    return MuonWithAdamW(
        matrices=parameter_groups(matrices, weight_decay=decay, decay_on=decay_on),
        others=parameter_groups(others, weight_decay=decay, decay_on=decay_on),
        # this adjustment makes Muon's updates as large as AdamW's, so that one rate serves both
        muon={"lr": optimizer.lr, "adjust_lr_fn": "match_rms_adamw", **optimizer.options},
        adamw={
            "lr": optimizer.lr,
            "betas": optimizer.betas,
            "eps": optimizer.eps,
            "fused": can_fuse(others),
        },
    )


class MuonWithAdamW(Optimizer):
    """Update each group by the algorithm that its `algorithm` key names.

    Where `found_inf` is a device scalar that holds 1.0, a step leaves weights and state unchanged,
    and the host does not wait for the device (AdamW's fused kernels do the same). This needs fused
    AdamW; `decides_on_device` says whether that is so.
    """

    found_inf: Tensor | None = None
    decides_on_device: bool

    def __init__(
        self,
        *,
        matrices: Groups,
        others: Groups,
        muon: Mapping[str, Any],
        adamw: Mapping[str, Any],
    ) -> None:
        muon_class: Any = torch.optim.Muon
        for group in matrices:
            group["algorithm"] = "muon"
        for group in others:
            group["algorithm"] = "adamw"
        self._muon: Optimizer = muon_class(matrices, **muon)
        self._adamw: Optimizer = AdamW(others, **adamw)
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
        """Give both halves this object's groups and state, which `load_state_dict` replaces."""
        for half, algorithm in ((self._muon, "muon"), (self._adamw, "adamw")):
            half.param_groups = [g for g in self.param_groups if g["algorithm"] == algorithm]
            half.state = self.state
        adamw: Any = self._adamw
        adamw.found_inf = self.found_inf

    def _step_matrices_unless(self, found_inf: Tensor) -> None:
        """Step Muon one matrix at a time and restore each where `found_inf` is set.

        This costs the memory of one matrix.
        """
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
    """Set `tensor` to `before` where `skip` is true, on the device and on this rank's shard."""
    local, old = _local(tensor), _local(before)
    local.copy_(torch.where(_local(skip), old, local))


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
