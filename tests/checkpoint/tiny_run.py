"""A model, optimizers and steps that are a function of the step alone, for the tests beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.checkpoint.tensors import collect
from stream_pretrain.config.sections import CheckpointConfig, StorageConfig
from stream_pretrain.data.sample_order.digest import chain
from stream_pretrain.schema import World
from stream_pretrain.storage.store import Store, open_store

VOCABULARY, WIDTH, SAMPLES = 32, 8, 4


class TinyModel(nn.Module):
    """Embedding, one block, norm, and a head tied to the embedding."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        logits: Tensor = self.head(self.norm(hidden + self.block(hidden)))
        return logits


def make_model(seed: int = 0, *, tied: bool = True) -> TinyModel:
    torch.manual_seed(seed)
    return TinyModel(tied=tied)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with two groups of different weight decay."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    steps: int,
    *,
    world: World | None = None,
    reduce_loss: Callable[[Tensor], None] = lambda _: None,
) -> list[float]:
    """Advance `state` by `steps`; the losses. Ranks share the samples of a step; each step draws
    from torch's generator too, so that a lost random state shows.
    """
    world = world or World()
    losses = []
    for _ in range(steps):
        generator = torch.Generator().manual_seed(state.data_step)
        rows = torch.randint(0, VOCABULARY, (SAMPLES, 6), generator=generator)
        mine = rows[world.rank :: world.world_size]
        logits = model(mine[:, :-1]).flatten(0, 1)
        total = nn.functional.cross_entropy(logits, mine[:, 1:].flatten(), reduction="sum")
        (total * world.world_size / (SAMPLES * 5)).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = total.detach().clone()
        reduce_loss(loss)
        losses.append(loss.item() / (SAMPLES * 5))
        state.step += 1
        state.data_step += 1
        state.tokens += SAMPLES * 5
        state.digest = chain(state.digest, int(rows.sum()))
    return losses


def checkpoints(
    run: Store | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    staging: Path | None = None,
    world: World | None = None,
    before_receipt: Callable[[], None] = lambda: None,
    warn: Callable[[str], None] | None = None,
    extras: Path | None = None,
    **config: object,
) -> Checkpoints:
    """`Checkpoints` of a run, with `config` as the section's keys."""
    extra = {"warn": warn} if warn is not None else {}
    return Checkpoints(
        run=open_store(run, StorageConfig()) if isinstance(run, Path) else run,
        staging=staging or Path("/nonexistent"),
        config=CheckpointConfig.model_validate(config),
        world=world or World(),
        model=model,
        optimizer=optimizer,
        extras=extras,
        before_receipt=before_receipt,
        **extra,
    )


def whole(tensor: Tensor) -> Tensor:
    """The tensor gathered from all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A hash of every bit of model and optimizer, the same under every topology."""
    tensors = collect(model, [optimizer])
    digest = hashlib.sha256()
    everything: Mapping[str, Tensor] = {**tensors.model, **tensors.optimizer}
    for name in sorted(everything):
        digest.update(name.encode())
        digest.update(whole(everything[name].detach()).contiguous().numpy().tobytes())
    return digest.hexdigest()
