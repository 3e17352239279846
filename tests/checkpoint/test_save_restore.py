"""Save and restore in one process, on a local run directory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import CheckpointConfig
from stream_pretrain.schema import World
from stream_pretrain.storage.store import open_store


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 32))


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2
    )


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, start: int = 0
) -> list[float]:
    losses = []
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 32, (4, 5), generator=generator)
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def checkpoints(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Checkpoints:
    return Checkpoints(
        run=open_store(run),
        staging=run / "unused",
        config=CheckpointConfig(),
        world=World(),
        model=model,
        optimizer=optimizer,
    )


def test_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    model = make_model()
    optimizer = make_optimizer(model)
    train(model, optimizer, 5)
    saver = checkpoints(tmp_path / "run", model, optimizer)
    state = TrainState(step=5, data_step=5, tokens=80, digest="00000000000000ab")
    saver.save(state)
    saver.wait()
    after = train(model, optimizer, 5, start=5)
    random_after = torch.rand(3)

    other = make_model(seed=1)
    other_optimizer = make_optimizer(other)
    reader = checkpoints(tmp_path / "run", other, other_optimizer)
    found = reader.find("auto")
    assert found is not None
    assert reader.restore(found) == state
    assert train(other, other_optimizer, 5, start=5) == after
    assert torch.equal(torch.rand(3), random_after)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    saver.close()
    reader.close()
