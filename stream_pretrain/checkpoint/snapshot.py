"""One moment of a run. In: model, optimizers, state. Out: `Snapshot`, which training no longer
changes. Does not write.

NamedTensors that every rank holds whole are shared out, so that each is copied and written once.
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
from stream_pretrain.checkpoint.tensors import NamedTensors, collect_tensors, group_settings, local_shard
from stream_pretrain.schema import World

Parts = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one rank saves. `live` tensors serve for their layout alone, `host` holds the values.

    `documents` are the small files that the leader writes, `best` the step of the best evaluation.
    """

    step: int
    data_step: int
    digest: str
    best: int | None
    live: Parts
    host: Parts
    rng: bytes
    documents: Mapping[str, bytes]


def take_snapshot(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    state: TrainState,
    *,
    world: World,
    buffers: HostBuffers | None,
) -> Snapshot:
    """Copy everything that training changes; without `buffers` the tensors are not copied."""
    tensors = collect_tensors(model, optimizers)
    live = tensors_to_write(tensors, world)
    best = state.best.get("step")
    return Snapshot(
        step=state.step,
        data_step=state.data_step,
        digest=state.digest,
        best=best if isinstance(best, int) else None,
        live=live,
        host=_on_host(live, buffers),
        rng=rng.capture(),
        documents={
            STATE_NAME: state.to_json().encode(),
            TENSORS_NAME: _notes(tensors, optimizers),
        },
    )


def tensors_to_write(tensors: NamedTensors, world: World) -> dict[str, dict[str, Tensor]]:
    """The tensors that this rank writes: its shards, and a fair part of what all ranks hold."""
    load = [0] * world.world_size
    shares: dict[str, dict[str, Tensor]] = {MODEL_DIR: {}, OPTIMIZER_DIR: {}}
    everything = [(MODEL_DIR, *item) for item in tensors.model.items()]
    everything += [(OPTIMIZER_DIR, *item) for item in tensors.optimizer.items()]
    for part, name, tensor in sorted(everything, key=lambda e: (-e[2].nbytes, e[0], e[1])):
        if not isinstance(tensor, DTensor):
            rank = load.index(min(load))
            load[rank] += tensor.nbytes
            if rank != world.rank:
                continue
        shares[part][name] = tensor
    return shares


def expected_shards(model: nn.Module, optimizers: Sequence[Optimizer], world: World) -> list[Tensor]:
    """NamedTensors like those that this rank will copy; before the first update two per parameter are
    guessed.
    """
    tensors = collect_tensors(model, optimizers)
    if not tensors.optimizer:
        moments = {
            f"{name}.{moment}": tensor
            for name, tensor in tensors.model.items()
            for moment in ("first", "second")
        }
        tensors = NamedTensors(model=tensors.model, optimizer=moments, tied={}, scalars={})
    share = tensors_to_write(tensors, world)
    return [local_shard(tensor) for part in share.values() for tensor in part.values()]


def _on_host(live: Parts, buffers: HostBuffers | None) -> Parts:
    if buffers is None:
        return {
            part: {name: local_shard(tensor.detach()) for name, tensor in tensors.items()}
            for part, tensors in live.items()
        }
    joined = {(part, name): tensor for part, ts in live.items() for name, tensor in ts.items()}
    copies = buffers.copy({f"{part}/{name}": tensor for (part, name), tensor in joined.items()})
    return {part: {n: copies[f"{part}/{n}"] for n in tensors} for part, tensors in live.items()}


def _notes(tensors: NamedTensors, optimizers: Sequence[Optimizer]) -> bytes:
    notes = {
        "tied": dict(tensors.tied),
        "scalars": dict(tensors.scalars),
        "groups": group_settings(optimizers),
    }
    return (json.dumps(notes, indent=2, sort_keys=True) + "\n").encode()
