"""The network where it trains. In: `ModelConfig`, Fabric. Out: `Network`: set up, sharded, compiled
as configured.

Weights are a function of the seed alone, on every strategy. Does not load checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from stream_pretrain.config.sections import Config
from stream_pretrain.model.build import (
    ForwardSettings,
    build_model,
    materialise,
    model_config_yaml,
)
from stream_pretrain.optim.build import build_optimizer

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True, kw_only=True)
class Network:
    """`model` is set up by Fabric, `optimizer` is torch's own, `stepper` the same wrapped by Fabric
    for its precision.

    `model_config` is the text of LitGPT's `model_config.yaml`.
    """

    model: nn.Module
    optimizer: Optimizer
    stepper: Any
    model_config: str


def make_network(config: Config, fabric: Fabric, *, seq_len: int, eos_id: int | None) -> Network:
    """Build, shard, fill, and give it its optimizer."""
    settings = ForwardSettings.of(
        model=config.model, loss=config.loss, compute=config.compute, eos_id=eos_id
    )
    sharded = config.compute.strategy in ("fsdp2", "hsdp")
    network = build_model(
        config.model,
        seed=config.run.seed,
        seq_len=seq_len,
        settings=settings,
        device="meta" if sharded else "cpu",
    )
    text = model_config_yaml(network)
    model = fabric.setup_module(network)
    if sharded:
        materialise(network, seed=config.run.seed)
    optimizer = build_optimizer(network, config.optimizer)
    if config.compute.compile:
        for block in network.transformer.h:
            block.compile()
    if config.compute.deterministic:
        torch.use_deterministic_algorithms(True)
    return Network(
        model=model,
        optimizer=optimizer,
        stepper=fabric.setup_optimizers(optimizer),
        model_config=text,
    )
