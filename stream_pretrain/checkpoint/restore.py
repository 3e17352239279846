"""A checkpoint's directory -> live tensors, generators and state. In: a directory with a checked
receipt. Out: a filled model and optimizer. Does not look for checkpoints.
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
    drop_untouched,
    set_scalars,
)
from stream_pretrain.errors import CheckpointError
from stream_pretrain.schema import World

Names = Mapping[str, frozenset[str]]


def load_tensors(directory: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Fill model and optimizers; nothing may be missing, left over, or of another shape or type."""
    notes = read_tensors_json(directory)
    stored = {
        part: frozenset(dcp.tensor_metadata(dcp.read_index(directory / part)))
        for part in (MODEL_DIR, OPTIMIZER_DIR)
    }
    for optimizer in optimizers:
        init_optimizer_state(optimizer)
    drop_untouched(model, optimizers, stored[OPTIMIZER_DIR] | frozenset(notes["scalars"]))
    live = collect_tensors(model, optimizers)
    _require_same_names(directory, live, stored, notes)
    dcp.read_into(directory / MODEL_DIR, live.model)
    dcp.read_into(directory / OPTIMIZER_DIR, live.optimizer)
    set_scalars(model, optimizers, notes["scalars"])


def _require_same_names(
    directory: Path, live: NamedTensors, stored: Names, notes: dict[str, Any]
) -> None:
    """What the checkpoint has and the run has not; the other way round is `dcp.read_into`'s."""
    left = sorted(stored[MODEL_DIR] - live.model.keys() - live.tied.keys())
    left += sorted(stored[OPTIMIZER_DIR] - live.optimizer.keys())
    left += sorted(notes["scalars"].keys() - live.scalars.keys())
    if left:
        shown = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        raise CheckpointError(
            f"{directory}: holds {shown}, which this model and optimizer do not have. "
            "Resume with the model and optimizer that wrote it."
        )
    if notes["tied"] != dict(live.tied):
        raise CheckpointError(
            f"{directory}: tied names are {notes['tied']}, the model's are {dict(live.tied)}. "
            "Set model.tie_embeddings as it was."
        )


def read_tensors_json(directory: Path) -> dict[str, Any]:
    """`tensors.json`: tied names, optimizer scalars, group settings."""
    place = directory / TENSORS_NAME
    try:
        notes = json.loads(place.read_bytes())
        return {
            "tied": dict(notes["tied"]),
            "scalars": dict(notes["scalars"]),
            "groups": list(notes["groups"]),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{place}: cannot be read ({error}). Use another checkpoint."
        ) from error


def load_state(directory: Path, receipt: Receipt) -> TrainState:
    """`state.json`, which must agree with its receipt."""
    place = directory / STATE_NAME
    state = TrainState.from_json(place.read_bytes(), str(place))
    for name in ("step", "data_step", "digest"):
        found, expected = getattr(state, name), getattr(receipt, name)
        if found != expected:
            raise CheckpointError(
                f"{place}: {name} is {found}, the receipt says {expected}. Use another checkpoint."
            )
    return state


def load_rng(directory: Path, receipt: Receipt, world: World, seed: int) -> None:
    """This rank's generators as they were; with another world size, derived from seed and step."""
    if receipt.world_size == world.world_size:
        rng.restore(directory / rng_name(world.rank))
    else:
        rng.derive(seed=seed, step=receipt.step, rank=world.rank)
