"""Build the network where it trains: set up by Fabric, sharded and compiled as configured.

Weights are a function of the seed alone, on every strategy. Does not load checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from stream_pretrain.config.sections import Config
from stream_pretrain.model.protocol import ForwardSettings
from stream_pretrain.model.registry import build_model, model_config_file
from stream_pretrain.optim.build_optimizer import build_optimizer

if TYPE_CHECKING:
    from lightning.fabric import Fabric


SHARDED = ("fsdp2", "hsdp")
"""Strategies under which a rank holds a part of each weight."""


@dataclass(frozen=True, kw_only=True)
class TrainableModel:
    """A network with its optimizer.

    `model` is what Fabric set up, `unwrapped` the network inside it (a `LanguageModel`),
    `optimizer` torch's own. The weights are storage without values until `init_weights` or a
    checkpoint gives them. `model_config` is the text of `model_config.yaml`.
    """

    model: nn.Module
    unwrapped: Any
    optimizer: Optimizer
    model_config: str
    seed: int

    def init_weights(self) -> None:
        """Fill in the first weights, the same on every rank: from the seed or `model.init_from`."""
        self.unwrapped.init_weights(seed=self.seed)


def set_up_model(
    config: Config, fabric: Fabric, *, seq_len: int, eos_id: int | None
) -> TrainableModel:
    """Build, shard and compile the network and build its optimizer; weights get no values here.

    `eos_id`: the dataset's end-of-text id, None where it has none.

    Raises:
        ConfigError: model or optimizer cannot be built as configured.
    """
    settings = ForwardSettings.of(
        model=config.model, loss=config.loss, compute=config.compute, eos_id=eos_id
    )
    sharded = config.compute.strategy in SHARDED
    network = build_model(
        config.model,
        seed=config.run.seed,
        seq_len=seq_len,
        settings=settings,
        device="meta" if sharded else "cpu",
        init_weights=False,
    )
    model = fabric.setup_module(network)
    if sharded:
        network.reset_buffers()
    if config.compute.compile:
        for block in network.blocks():
            block.compile()
    return TrainableModel(
        model=model,
        unwrapped=network,
        optimizer=build_optimizer(network, config.optimizer),
        model_config=model_config_file(config.model),
        seed=config.run.seed,
    )
