"""The network where it trains. In: `ModelConfig`, Fabric. Out: `TrainableModel`: set up, sharded,
compiled as configured.

Weights are a function of the seed alone, on every strategy. Does not load checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from stream_pretrain.config.sections import Config
from stream_pretrain.model.litgpt_model import (
    ForwardSettings,
    PretrainGPT,
    build_model,
    init_weights_in_place,
    materialise,
    model_config_yaml,
)
from stream_pretrain.optim.build_optimizer import build_optimizer

if TYPE_CHECKING:
    from lightning.fabric import Fabric


SHARDED = ("fsdp2", "hsdp")
"""Strategies under which a rank holds a part of each weight."""


@dataclass(frozen=True, kw_only=True)
class TrainableModel:
    """`model` is set up by Fabric, `optimizer` is torch's own, `bare` what Fabric wraps.

    Its weights are storage without values until `fill` or a checkpoint gives them. `model_config`
    is the text of LitGPT's `model_config.yaml`.
    """

    model: nn.Module
    unwrapped: PretrainGPT
    optimizer: Optimizer
    model_config: str
    seed: int

    def init_weights(self) -> None:
        """First weights, the same on every rank: from the seed or `model.init_from`."""
        init_weights_in_place(self.unwrapped, seed=self.seed)


def set_up_model(
    config: Config, fabric: Fabric, *, seq_len: int, eos_id: int | None
) -> TrainableModel:
    """Build, shard, compile, and give it its optimizer. Values come later: see `TrainableModel`."""
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
        fill=False,
    )
    text = model_config_yaml(network)
    model = fabric.setup_module(network)
    if sharded:
        materialise(network, seed=config.run.seed, fill=False)
    if config.compute.compile:
        for block in network.transformer.h:
            block.compile()
    return TrainableModel(
        model=model,
        unwrapped=network,
        optimizer=build_optimizer(network, config.optimizer),
        model_config=text,
        seed=config.run.seed,
    )
