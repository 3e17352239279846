"""What the trainer needs of a model, whoever wrote it.

There are two small protocols. `ModelDefinition` is the model as the configuration describes it: its
facts, and how to build it. `LanguageModel` is the network itself: a `torch.nn.Module` with a loss.
LitGPT's architectures are one implementation (`litgpt_definition`).

A model of one's own is selected by `model.name: "module:factory"`. The factory is called with the
`model` section (`ModelConfig`, whose `config` mapping holds whatever the factory wants) and returns
a `ModelDefinition`. It raises `ConfigError` for values that it cannot use, and may be called more
than once. For example, in `my_models.py`::

    class Bigram(nn.Module):
        def __init__(self, vocab_size, width, settings):
            super().__init__()
            self.settings = settings
            self.embedding = nn.Embedding(vocab_size, width)
            self.mlp = nn.Linear(width, width)
            self.lm_head = nn.Linear(width, vocab_size, bias=False)

        def forward(self, ids, targets=None):
            hidden = torch.tanh(self.mlp(self.embedding(ids)))
            if targets is None:
                return self.lm_head(hidden)
            return loss_sums(hidden, self.lm_head, targets)

        def blocks(self):
            return [self.mlp]

        def reset_buffers(self):
            pass

        def init_weights(self, *, seed):
            initialize(self, seed=seed, width=self.mlp.in_features, layers=1)

    class BigramDefinition:
        supports = ()

        def __init__(self, vocab_size, width):
            self.vocab_size, self.width = vocab_size, width

        def facts(self, *, seq_len=None):
            return ModelFacts(...)

        def build(self, settings, *, seq_len=None):
            return Bigram(self.vocab_size, self.width, settings)

    def bigram(model):
        return BigramDefinition(**model.config)

and in the configuration `model: {name: "my_models:bigram", config: {vocab_size: 257, width: 32}}`,
with the directory of `my_models.py` on PYTHONPATH. `loss_sums` is in `stream_pretrain.model.loss`,
`initialize` in `stream_pretrain.model.init_weights`, `ModelFacts` in `stream_pretrain.schema`.

Rules that the trainer's promises depend on:

- The network is built on the meta device. Buffers that `state_dict` leaves out, and weights that
  are one parameter under two names, are made again by `reset_buffers` once there is storage.
- First weights depend on the seed alone, not on the device, the number of ranks or the sharding:
  `initialize` and `fill_parameter` draw on the CPU and copy this rank's part.
- `forward` is a function of its arguments: no state goes from one call to the next.
- Everything that a resume needs is in `state_dict`.
- Optimizers tell roles by shape and name: the head is called `lm_head`, embeddings are
  `nn.Embedding`.

Each checkpoint carries `model_config.yaml`, from which `generate` builds the network again: for a
model of one's own it holds the factory's name and the `model` section (`registry` writes it).
`export` is for LitGPT's architectures alone. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stream_pretrain.errors import ConfigError, Fault

if TYPE_CHECKING:
    from torch import Tensor, nn

    from stream_pretrain.config.sections import ComputeConfig, LossConfig, ModelConfig
    from stream_pretrain.model.loss import LossSums
    from stream_pretrain.schema import ModelFacts

SETTINGS = (
    "model.init_from",
    "model.tie_embeddings",
    "model.document_mask",
    "loss.z_loss",
    "loss.chunk",
    "compute.activation_checkpointing",
    "compute.compile",
)
"""Settings that a model may support or not. Those that it does not support are refused."""


@dataclass(frozen=True, kw_only=True)
class ForwardSettings:
    """How a forward pass is computed. None of it is part of the weights.

    `loss_chunk`: tokens of a micro-batch whose logits exist at once (0: all). `z_weight`: weight of
    the z-loss. `document_eos_id`: keep documents apart, each of which this id opens (None: do not).
    `recompute_blocks`: activation checkpointing by block.
    """

    loss_chunk: int = 0
    z_weight: float = 0.0
    document_eos_id: int | None = None
    recompute_blocks: bool = False

    @classmethod
    def of(
        cls, *, model: ModelConfig, loss: LossConfig, compute: ComputeConfig, eos_id: int | None
    ) -> ForwardSettings:
        """Return what the configuration asks for.

        `eos_id` is the dataset's end-of-text id, None where it has none.
        """
        if faults := check_document_mask(model, eos_id):
            raise ConfigError.of(faults)
        return cls(
            loss_chunk=loss.chunk,
            z_weight=loss.z_loss,
            document_eos_id=eos_id if model.document_mask else None,
            recompute_blocks=compute.activation_checkpointing,
        )


class LanguageModel(Protocol):
    """The network: a `torch.nn.Module` with these methods.

    Axes: B samples, T positions, V vocabulary. The first weights come from `init_weights`, or from
    a checkpoint that is loaded into the parameters and persistent buffers.
    """

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor | LossSums:
        """Return logits [B, T, V], or with targets (int64 [B, T]) the sums of their losses."""

    def blocks(self) -> Sequence[nn.Module]:
        """Return the modules that are sharded, and compiled, one by one; often the layers.

        Parameters outside of all blocks are sharded together. May be empty.
        """

    def reset_buffers(self) -> None:
        """Compute again what `nn.Module.to_empty` loses: transient buffers and tied weights."""

    def init_weights(self, *, seed: int) -> None:
        """Fill every parameter and persistent buffer in place, whole or sharded."""


class ModelDefinition(Protocol):
    """A model of the configuration that has not been built yet."""

    @property
    def supports(self) -> Collection[str]:
        """Keys of `SETTINGS` that this model implements; the others are refused where set."""

    def facts(self, *, seq_len: int | None = None) -> ModelFacts:
        """Return sizes and FLOPs per token at `seq_len` (None: the context); takes no memory.

        FLOPs count forward and backward: 6 for each weight of a matrix that a token meets, plus
        attention.
        """

    def build(self, settings: ForwardSettings, *, seq_len: int | None = None) -> Any:
        """Return a `LanguageModel`; it is called with the meta device as torch's default device.

        `seq_len`: the length of all sequences of the run (None: up to the model's context).
        """


def check_document_mask(model: ModelConfig, eos_id: int | None) -> list[Fault]:
    """Return a fault for a document mask without an end-of-text id; needs no model."""
    if not model.document_mask or eos_id is not None:
        return []
    remedy = (
        "the data names no end-of-text token, so documents cannot be told apart; "
        "convert it with one, or leave this out"
    )
    return [Fault(path="model.document_mask", found="true", remedy=remedy)]
