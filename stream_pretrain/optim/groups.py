"""Parameters -> groups. In: a model. Out: lists for an optimizer, in a fixed order. Does not make
optimizers.

Weight decay is for matrices: not for norms and biases (one dimension), and not for embeddings
unless asked. A tied embedding is the head's matrix too and counts as an embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn import Parameter

Role = Literal["hidden", "head", "embedding", "vector"]


@dataclass(frozen=True, kw_only=True)
class NamedParameter:
    """One trained parameter: its name in the state dict, the tensor, and what it does in the
    network."""

    name: str
    parameter: Parameter
    role: Role

    def decays(self, *, decay_embeddings: bool) -> bool:
        """Whether weight decay applies."""
        if self.role == "vector":
            return False
        return decay_embeddings or self.role != "embedding"


def named_parameters(model: nn.Module) -> list[NamedParameter]:
    """Every parameter that is trained, once, with its role, in the model's order."""
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return [
        NamedParameter(
            name=name, parameter=p, role=_role(name, p, is_embedding=id(p) in embeddings)
        )
        for name, p in model.named_parameters()
        if p.requires_grad
    ]


def _role(name: str, parameter: Parameter, *, is_embedding: bool) -> Role:
    if is_embedding:
        return "embedding"
    if parameter.ndim < 2:
        return "vector"
    return "head" if name.endswith("lm_head.weight") else "hidden"


def parameter_groups(
    parameters: Iterable[NamedParameter], *, weight_decay: float, decay_embeddings: bool
) -> list[dict[str, object]]:
    """At most two groups, decayed ones first; a group without parameters is left out."""
    decayed: list[Parameter] = []
    spared: list[Parameter] = []
    for entry in parameters:
        target = decayed if entry.decays(decay_embeddings=decay_embeddings) else spared
        target.append(entry.parameter)
    groups: list[dict[str, object]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
