"""Copy a run at one step into a `Snapshot`, which training no longer changes. Nothing is written.

Tensors that every rank holds whole are divided among the ranks, so that each is copied and written
once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stream_pretrain.checkpoint import rng
from stream_pretrain.checkpoint.host_buffers import HostBuffers
from stream_pretrain.checkpoint.layout import MODEL_DIR, OPTIMIZER_DIR, STATE_NAME, TENSORS_NAME
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.checkpoint.tensors import (
    NamedTensors,
    collect_tensors,
    group_settings,
    local_shard,
)
from stream_pretrain.schema import World

TensorsByPart = Mapping[str, Mapping[str, Tensor]]
"""Tensors by name, for each part of a checkpoint: `model` and `optimizer`."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one rank saves.

    `tensors` are the tensors that training goes on changing; only their layout is used.
    `host_copies` hold the values of this rank's shards. `json_files` are small files that rank 0
    writes. `best` is the step of the best evaluation.
    """

    step: int
    data_step: int
    digest: str
    best: int | None
    tensors: TensorsByPart
    host_copies: TensorsByPart
    rng: bytes
    json_files: Mapping[str, bytes]


def take_snapshot(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    state: TrainState,
    *,
    world: World,
    buffers: HostBuffers | None,
) -> Snapshot:
    """Copy everything that training changes; without `buffers` the tensors are not copied."""
    collected = collect_tensors(model, optimizers)
    tensors = tensors_to_write(collected, world)
    best = state.best.get("step")
    return Snapshot(
        step=state.step,
        data_step=state.data_step,
        digest=state.digest,
        best=best if isinstance(best, int) else None,
        tensors=tensors,
        host_copies=_copy_to_host(tensors, buffers),
        rng=rng.capture(),
        json_files={
            STATE_NAME: state.to_json().encode(),
            TENSORS_NAME: _tensors_json(collected, optimizers),
        },
    )


def tensors_to_write(tensors: NamedTensors, world: World) -> dict[str, dict[str, Tensor]]:
    """Return the tensors that this rank writes.

    These are all sharded tensors, of which each rank writes its shard, and a share of the tensors
    that every rank holds whole. The shares of the ranks have about the same size in bytes.
    """
    rank_bytes = [0] * world.world_size
    chosen: dict[str, dict[str, Tensor]] = {MODEL_DIR: {}, OPTIMIZER_DIR: {}}
    entries = [(MODEL_DIR, *item) for item in tensors.model.items()]
    entries += [(OPTIMIZER_DIR, *item) for item in tensors.optimizer.items()]
    for part, name, tensor in sorted(entries, key=lambda e: (-e[2].nbytes, e[0], e[1])):
        if not isinstance(tensor, DTensor):
            rank = rank_bytes.index(min(rank_bytes))
            rank_bytes[rank] += tensor.nbytes
            if rank != world.rank:
                continue
        chosen[part][name] = tensor
    return chosen


def expected_shards(
    model: nn.Module, optimizers: Sequence[Optimizer], world: World
) -> list[Tensor]:
    """Return tensors shaped like those that this rank will copy.

    Before the first update the optimizer has no state yet: two tensors per parameter are assumed.
    """
    tensors = collect_tensors(model, optimizers)
    if not tensors.optimizer:
        moments = {
            f"{name}.{moment}": tensor
            for name, tensor in tensors.model.items()
            for moment in ("first", "second")
        }
        tensors = NamedTensors(model=tensors.model, optimizer=moments, tied={}, scalars={})
    chosen = tensors_to_write(tensors, world)
    return [local_shard(tensor) for part in chosen.values() for tensor in part.values()]


def _copy_to_host(tensors: TensorsByPart, buffers: HostBuffers | None) -> TensorsByPart:
    if buffers is None:
        return {
            part: {name: local_shard(tensor.detach()) for name, tensor in of_part.items()}
            for part, of_part in tensors.items()
        }
    copies = buffers.copy(
        {
            f"{part}/{name}": tensor
            for part, of_part in tensors.items()
            for name, tensor in of_part.items()
        }
    )
    return {
        part: {name: copies[f"{part}/{name}"] for name in of_part}
        for part, of_part in tensors.items()
    }


def _tensors_json(tensors: NamedTensors, optimizers: Sequence[Optimizer]) -> bytes:
    body = {
        "tied": dict(tensors.tied),
        "scalars": dict(tensors.scalars),
        "groups": group_settings(optimizers),
    }
    return (json.dumps(body, indent=2, sort_keys=True) + "\n").encode()
