"""Sort a model's parameters into groups for an optimizer, with and without weight decay.

The order is that of the model. Weight decay is for matrices. Embeddings, norms and biases decay
only where `decay_on` names them. A tied embedding is one parameter with the head and counts as an
embedding. Creates no optimizer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torch.nn import Parameter

Role = Literal["hidden", "head", "embeddings", "norms", "biases"]
_FUSED_DEVICES = ("cpu", "cuda", "mps")


@dataclass(frozen=True, kw_only=True)
class NamedParameter:
    """One trained parameter: its name in the state dict, the tensor, its role in the network."""

    name: str
    parameter: Parameter
    role: Role

    def decays(self, decay_on: Collection[str]) -> bool:
        """Return whether weight decay applies: to matrices always, to other roles where named."""
        return self.role in ("hidden", "head") or self.role in decay_on


def named_parameters(model: nn.Module) -> list[NamedParameter]:
    """Return every trained parameter once, with its role, in the model's order."""
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return [
        NamedParameter(name=name, parameter=p, role=_role(name, p, embeds=id(p) in embeddings))
        for name, p in model.named_parameters()
        if p.requires_grad
    ]


def _role(name: str, parameter: Parameter, *, embeds: bool) -> Role:
    if embeds:
        return "embeddings"
    if parameter.ndim < 2:
        return "biases" if name.endswith("bias") else "norms"
    return "head" if name.endswith("lm_head.weight") else "hidden"


def parameter_groups(
    parameters: Iterable[NamedParameter],
    *,
    weight_decay: float | None,
    decay_on: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return at most two groups, the one with decay first; an empty group is left out.

    `weight_decay` None: the optimizer has no decay, so there is one group.
    """
    decayed: list[Parameter] = []
    exempt: list[Parameter] = []
    for entry in parameters:
        decays = weight_decay is not None and entry.decays(decay_on)
        (decayed if decays else exempt).append(entry.parameter)
    if weight_decay is None:
        return [{"params": exempt}] if exempt else []
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": exempt, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def can_fuse(parameters: Sequence[NamedParameter]) -> bool:
    """Return whether torch's fused kernels accept these parameters.

    They must be floating point, on a device that has such kernels.
    """
    return all(
        entry.parameter.device.type in _FUSED_DEVICES and entry.parameter.is_floating_point()
        for entry in parameters
    )
