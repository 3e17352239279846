"""Fill model, optimizers and random generators from a checkpoint's directory.

The directory has a receipt that `search` has verified. Finding a checkpoint is not done here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stream_pretrain.checkpoint import dcp, rng
from stream_pretrain.checkpoint.layout import (
    MODEL_DIR,
    OPTIMIZER_DIR,
    STATE_NAME,
    TENSORS_NAME,
    Receipt,
    rng_name,
)
from stream_pretrain.checkpoint.optimizer_state import init_optimizer_state
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.checkpoint.tensors import (
    NamedTensors,
    collect_tensors,
    drop_state_without_values,
    set_scalars,
)
from stream_pretrain.errors import CheckpointError
from stream_pretrain.schema import World

NamesByPart = Mapping[str, frozenset[str]]


def load_tensors(directory: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Fill model and optimizers from a checkpoint.

    Raises:
        CheckpointError: a tensor is missing on either side or has another shape or type, or other
            parameters are tied.
    """
    extra = read_tensors_json(directory)
    stored = {
        part: frozenset(dcp.tensor_metadata(dcp.read_index(directory / part)))
        for part in (MODEL_DIR, OPTIMIZER_DIR)
    }
    for optimizer in optimizers:
        init_optimizer_state(optimizer)
    saved_values = stored[OPTIMIZER_DIR] | frozenset(extra["scalars"])
    drop_state_without_values(model, optimizers, saved_values)
    targets = collect_tensors(model, optimizers)
    _require_same_names(directory, targets, stored, extra)
    dcp.read_into(directory / MODEL_DIR, targets.model)
    dcp.read_into(directory / OPTIMIZER_DIR, targets.optimizer)
    set_scalars(model, optimizers, extra["scalars"])


def _require_same_names(
    directory: Path, targets: NamedTensors, stored: NamesByPart, extra: dict[str, Any]
) -> None:
    """Raise for names that only the checkpoint has; `dcp.read_into` does so for the others."""
    unused = sorted(stored[MODEL_DIR] - targets.model.keys() - targets.tied.keys())
    unused += sorted(stored[OPTIMIZER_DIR] - targets.optimizer.keys())
    unused += sorted(extra["scalars"].keys() - targets.scalars.keys())
    if unused:
        shown = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
        raise CheckpointError(
            f"{directory}: holds {shown}, which this model and optimizer do not have. "
            "Resume with the model and optimizer that wrote it."
        )
    if extra["tied"] != dict(targets.tied):
        raise CheckpointError(
            f"{directory}: tied names are {extra['tied']}, the model's are {dict(targets.tied)}. "
            "Set model.tie_embeddings as it was when the checkpoint was written."
        )


def read_tensors_json(directory: Path) -> dict[str, Any]:
    """Read `tensors.json`: tied names, optimizer scalars, group settings."""
    path = directory / TENSORS_NAME
    try:
        raw = json.loads(path.read_bytes())
        return {
            "tied": dict(raw["tied"]),
            "scalars": dict(raw["scalars"]),
            "groups": list(raw["groups"]),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}). Use another checkpoint."
        ) from error


def load_state(directory: Path, receipt: Receipt) -> TrainState:
    """Read `state.json`; `CheckpointError` when it disagrees with the receipt."""
    path = directory / STATE_NAME
    state = TrainState.from_json(path.read_bytes(), str(path))
    for name in ("step", "data_step", "digest"):
        value, expected = getattr(state, name), getattr(receipt, name)
        if value != expected:
            raise CheckpointError(
                f"{path}: {name} is {value}, the receipt says {expected}. Use another checkpoint."
            )
    return state


def load_rng(directory: Path, receipt: Receipt, world: World, seed: int) -> None:
    """Restore this rank's random generators, or derive them if the world size has changed."""
    if receipt.world_size == world.world_size:
        rng.restore(directory / rng_name(world.rank))
    else:
        rng.derive(seed=seed, step=receipt.step, rank=world.rank)
