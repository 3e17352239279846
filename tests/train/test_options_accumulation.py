"""Gradient accumulation: the same update from any number of micro-batches, synchronised once."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from stream_pretrain.config.sections import ModelConfig, OptimizerConfig
from stream_pretrain.data.batch import Batch
from stream_pretrain.model.registry import build_model
from stream_pretrain.optim.build_optimizer import build_optimizer
from stream_pretrain.runtime.step_sync import StepSync
from stream_pretrain.schema import World
from stream_pretrain.train.step import StepResult, Updater

SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 8, "vocab_size": 32}
IDS = torch.randint(0, 32, (4, 9), generator=torch.Generator().manual_seed(0)).int()


def one_update(micro: int, fabric: Fabric) -> tuple[StepResult, dict[str, torch.Tensor]]:
    """A step over four samples, `micro` at a time; the weights after it."""
    network = build_model(ModelConfig(config={**SHAPE, "padded_vocab_size": 32}), seed=1)
    sgd = OptimizerConfig(name="torch.optim.SGD", lr=0.1, weight_decay=0)
    made = Updater(
        fabric=fabric,
        model=fabric.setup_module(network),
        optimizer=build_optimizer(network, sgd),
        control=StepSync(World()),
        tokens_per_step=32,
        clip_norm=None,
        stream_starts=[0, 2],
    )
    places = torch.arange(4)
    batches = [
        Batch(ids=ids, sample_ids=ids_of, digest_sum=0)
        for ids, ids_of in zip(IDS.split(micro), places.split(micro), strict=True)
    ]
    return made(batches, lr=0.1), network.state_dict()


@pytest.mark.parametrize("micro", [1, 2])
def test_micro_batches_make_the_update_of_the_whole_batch(micro: int) -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    whole, expected = one_update(4, fabric)
    parts, found = one_update(micro, fabric)
    assert float(parts.loss) == pytest.approx(float(whole.loss), abs=1e-6)
    assert float(parts.grad_norm) == pytest.approx(float(whole.grad_norm), abs=1e-6)
    assert parts.stream_losses is not None and whole.stream_losses is not None
    assert torch.allclose(parts.stream_losses, whole.stream_losses, atol=1e-6)
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, atol=1e-6), name


def test_ranks_exchange_gradients_in_the_last_micro_batch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    held_back: list[bool] = []
    real = fabric.no_backward_sync

    def seen(module: Any, enabled: bool = True) -> AbstractContextManager[Any]:
        held_back.append(enabled)
        return real(module, enabled=enabled)

    monkeypatch.setattr(fabric, "no_backward_sync", seen)
    one_update(1, fabric)
    assert held_back == [True, True, True, False]
