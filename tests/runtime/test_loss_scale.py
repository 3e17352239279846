"""float16's loss scale: found, kept in a checkpoint, never in the way of a step. On a CPU, where
torch has the same scaler."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch.amp import GradScaler

from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import ModelConfig, OptimizerConfig
from stream_pretrain.data.batch import Batch
from stream_pretrain.errors import CheckpointError
from stream_pretrain.model.registry import build_model
from stream_pretrain.optim.build_optimizer import build_optimizer
from stream_pretrain.runtime.loss_scale import LossScale
from stream_pretrain.runtime.step_sync import StepSync
from stream_pretrain.schema import World
from stream_pretrain.train.step import StepResult, Updater

SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 8, "vocab_size": 32}


def half(first_scale: float, *, every: int = 2) -> Fabric:
    """Fabric in 16-mixed; its scale starts at `first_scale` and grows after `every` steps."""
    scaler = GradScaler("cpu", init_scale=first_scale, growth_interval=every)
    precision = MixedPrecision(precision="16-mixed", device="cpu", scaler=scaler)
    return Fabric(accelerator="cpu", devices=1, plugins=[precision])


def updater(fabric: Fabric, name: str = "adamw") -> Updater:
    network = build_model(ModelConfig(config={**SHAPE, "padded_vocab_size": 32}), seed=1)
    model = fabric.setup_module(network)
    optimizer = build_optimizer(network, OptimizerConfig(name=name, lr=1e-2))
    return Updater(
        fabric=fabric,
        model=model,
        optimizer=optimizer,
        control=StepSync(World()),
        tokens_per_step=16,
        clip_norm=1.0,
        stream_starts=[0],
    )


def batches(step: int) -> list[Batch]:
    ids = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(step % 3))
    places = torch.arange(2)
    return [Batch(ids=ids.int(), sample_ids=places, digest_sum=0)]


def train(make: Updater, steps: Sequence[int]) -> list[StepResult]:
    return [make(batches(step), lr=1e-2) for step in steps]


@pytest.mark.parametrize("name", ["adamw", "torch.optim.SGD", "muon"])
def test_an_overflow_leaves_the_weights_and_lowers_the_scale_until_steps_are_made(
    name: str,
) -> None:
    made = updater(half(2.0**24, every=100), name)
    weights = [p.clone() for p in made._model.parameters()]
    results = []
    for step in range(30):
        (result,) = train(made, [step])
        results.append(result)
        moved = any(
            not torch.equal(a, b) for a, b in zip(weights, made._model.parameters(), strict=True)
        )
        weights = [p.clone() for p in made._model.parameters()]
        assert moved == bool(result.applied)
    assert not results[0].applied
    assert results[-1].applied
    lost = sum(not result.applied for result in results)
    assert made.loss_scale.state()["scale"] == 2.0 ** (24 - lost)
    assert results[-1].loss < results[0].loss


def test_gradients_are_those_without_a_scale() -> None:
    norms = []
    for scale in (1.0, 1024.0):
        (result,) = train(updater(half(scale)), [0])
        norms.append(float(result.grad_norm))
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


def test_a_step_left_out_for_its_loss_does_not_lower_the_scale() -> None:
    made = updater(half(1024.0, every=100))
    result = made(batches(0), lr=1e-2, loss_limit=0.1)
    assert not result.applied
    assert made.loss_scale.state()["scale"] == 1024.0


def test_a_resumed_scale_goes_on_as_if_nothing_had_happened() -> None:
    """Through the state's JSON, in the middle of the wait for the scale to grow."""
    whole = updater(half(256.0, every=3))
    expected = train(whole, range(8))
    first = updater(half(256.0, every=3))
    train(first, range(4))
    text = TrainState(precision=first.loss_scale.state()).to_json()
    saved = TrainState.from_json(text, "state").precision
    assert saved["_growth_tracker"] == 1
    second = updater(half(8.0, every=7))
    second._model.load_state_dict(first._model.state_dict())
    second._optimizer.load_state_dict(first._optimizer.state_dict())
    second.loss_scale.load(saved)
    results = train(second, range(4, 8))
    assert [float(r.loss) for r in results] == [float(r.loss) for r in expected[4:]]
    assert second.loss_scale.state() == whole.loss_scale.state()
    for left, right in zip(whole._model.parameters(), second._model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_other_precisions_have_no_scale() -> None:
    scale = LossScale(Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"))
    assert scale.state() == {}
    scale.load({"scale": 4.0})  # a checkpoint of a run in 16-mixed
    scale.update()
    assert scale.state() == {}


def test_a_run_that_turns_to_16_mixed_starts_with_a_fresh_scale() -> None:
    scale = LossScale(half(64.0))
    scale.load({})
    assert scale.state()["scale"] == 64.0


@pytest.mark.parametrize("value", [0, -1.0, "x", True, float("inf")])
def test_a_state_with_an_impossible_scale_is_refused(value: Any) -> None:
    raw = json.loads(TrainState().to_json())
    raw["precision"] = {"scale": value}
    with pytest.raises(CheckpointError, match="precision has the loss scale"):
        TrainState.from_json(json.dumps(raw), "state.json")
