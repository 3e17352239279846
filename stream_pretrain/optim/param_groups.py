"""Parameters -> groups. In: a model. Out: lists for an optimizer, in a fixed order. Does not make
optimizers.

Weight decay is for matrices. Embeddings, norms and biases decay only where `decay_on` names them. A
tied embedding is one parameter with the head and counts as an embedding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torch.nn import Parameter

Role = Literal["hidden", "head", "embeddings", "norms", "biases"]


@dataclass(frozen=True, kw_only=True)
class NamedParameter:
    """One trained parameter: its name in the state dict, the tensor, and what it does in the
    network."""

    name: str
    parameter: Parameter
    role: Role

    def decays(self, decay_on: Collection[str]) -> bool:
        """Whether weight decay applies: always to matrices, to the other roles where named."""
        return self.role in ("hidden", "head") or self.role in decay_on


def named_parameters(model: nn.Module) -> list[NamedParameter]:
    """Every parameter that is trained, once, with its role, in the model's order."""
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
    settings: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """At most two groups, decayed ones first; one without parameters is left out. `settings` go
    into both.

    `weight_decay` None: the optimizer knows no decay, so there is one group.
    """
    decayed: list[Parameter] = []
    spared: list[Parameter] = []
    for entry in parameters:
        decays = weight_decay is not None and entry.decays(decay_on)
        (decayed if decays else spared).append(entry.parameter)
    extra = dict(settings or {})
    if weight_decay is None:
        return [{"params": spared, **extra}] if spared else []
    groups = [
        {"params": decayed, "weight_decay": weight_decay, **extra},
        {"params": spared, "weight_decay": 0.0, **extra},
    ]
    return [group for group in groups if group["params"]]
