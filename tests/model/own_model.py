"""A language model that LitGPT does not have, written as a user would: means, no attention.

`model.name: "model.own_model:running_mean"`; the other names are what a user may get wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stream_pretrain.config.sections import ModelConfig
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.model.init_weights import initialize
from stream_pretrain.model.loss import LossSums, loss_sums
from stream_pretrain.model.protocol import ForwardSettings
from stream_pretrain.schema import ModelFacts

VALUES = {"vocab_size": 257, "width": 16, "layers": 2, "context": 32}
"""`model.config` of the tests."""


class Mix(nn.Module):
    """Add an MLP of each token and the mean of all tokens up to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, hidden_BTD: Tensor, share_T1: Tensor) -> Tensor:
        mean_BTD = hidden_BTD.cumsum(1) * share_T1
        inner = torch.tanh(self.inner(torch.cat([hidden_BTD, mean_BTD], -1)))
        return hidden_BTD + self.outer(inner)


class RunningMean(nn.Module):
    """The network. `share` is a transient buffer; head and embedding are tied."""

    share: Tensor

    def __init__(self, vocab_size: int, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.lm_head = nn.Linear(width, vocab_size, bias=False)
        self.embedding = nn.Embedding(vocab_size, width)
        self.mixes = nn.ModuleList([Mix(width) for _ in range(layers)])
        self.register_buffer("share", torch.empty(context, 1), persistent=False)
        self.embedding.weight = self.lm_head.weight

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor | LossSums:
        hidden_BTD = self.embedding(ids_BT)
        for mix in self.mixes:
            hidden_BTD = mix(hidden_BTD, self.share[: ids_BT.size(1)])
        if targets_BT is None:
            logits: Tensor = self.lm_head(hidden_BTD)
            return logits
        return loss_sums(hidden_BTD, self.lm_head, targets_BT)

    def blocks(self) -> list[nn.Module]:
        return list(self.mixes)

    def reset_buffers(self) -> None:
        device = self.lm_head.weight.device
        self.share = 1 / torch.arange(1, self.context + 1, device=device)[:, None]
        self.embedding.weight = self.lm_head.weight

    def init_weights(self, *, seed: int) -> None:
        initialize(self, seed=seed, width=self.lm_head.in_features, layers=len(self.mixes))


class RunningMeanDefinition:
    """What the trainer asks before there is a network."""

    supports = ("compute.compile",)

    def __init__(self, **values: int) -> None:
        self.values = values

    def build(self, _settings: ForwardSettings, *, seq_len: int | None = None) -> nn.Module:
        del seq_len
        return RunningMean(**self.values)

    def facts(self, *, seq_len: int | None = None) -> ModelFacts:
        del seq_len
        with torch.device("meta"):
            network = RunningMean(**self.values)
        parameters = sum(p.numel() for p in network.parameters())
        return ModelFacts(
            name="running mean",
            vocab_size=self.values["vocab_size"],
            padded_vocab_size=self.values["vocab_size"],
            block_size=self.values["context"],
            parameters=parameters,
            parameters_without_embeddings=parameters - network.lm_head.weight.numel(),
            layers=self.values["layers"],
            flops_per_token=6.0 * parameters,
        )


def running_mean(model: ModelConfig) -> RunningMeanDefinition:
    """The factory."""
    values = dict(model.config or {})
    if missing := sorted(set(VALUES) - set(values)):
        fault = Fault(path=f"model.config.{missing[0]}", found="", remedy="must be given")
        raise ConfigError.of([fault])
    return RunningMeanDefinition(**values)


def raises(_model: ModelConfig) -> None:
    raise RuntimeError("no luck")


def lacks_everything(_model: ModelConfig) -> object:
    return object()


class _Changed(RunningMeanDefinition):
    def __init__(self) -> None:
        super().__init__(**VALUES)


def unknown_setting(_model: ModelConfig) -> Any:
    changed = _Changed()
    changed.supports = ("model.tied",)  # type: ignore[assignment]
    return changed


def wrong_facts(_model: ModelConfig) -> Any:
    changed = _Changed()
    changed.facts = lambda *, seq_len=None: {"seq_len": seq_len}  # type: ignore[assignment]
    return changed


def no_module(_model: ModelConfig) -> Any:
    changed = _Changed()
    changed.build = lambda _settings, *, seq_len=None: seq_len  # type: ignore[assignment]
    return changed


def no_blocks(_model: ModelConfig) -> Any:
    changed = _Changed()
    changed.build = lambda _settings, *, seq_len=None: nn.Linear(2, 2)  # type: ignore[assignment]  # noqa: ARG005
    return changed


not_callable = 3
