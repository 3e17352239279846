"""Checkpoints -> live tensors and state. In: shelves, torch objects. Out: `Found`, then a filled model and optimizer.

Looks before it loads: nothing is changed until a checkpoint has been compared with its receipt.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
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
from stream_pretrain.checkpoint.shelf import Shelf
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.checkpoint.tensors import (
    Tensors,
    collect,
    drop_untouched,
    materialise_optimizer,
    set_scalars,
)
from stream_pretrain.errors import CheckpointError, StorageError
from stream_pretrain.schema import World


@dataclass(frozen=True, kw_only=True)
class Found:
    """A whole checkpoint: `step`, the store it is on (`place`, for messages), and its receipt."""

    step: int
    place: str
    receipt: Receipt
    in_staging: bool = False


def newest_whole(
    shelf: Shelf, *, hashes: bool, at_most: int | None = None
) -> tuple[Receipt | None, list[int]]:
    """The newest checkpoint that agrees with its receipt, and the damaged ones passed over (with warnings)."""
    damaged = []
    for step in reversed(shelf.steps()):
        if at_most is not None and step > at_most:
            continue
        try:
            return shelf.check(step, hashes=hashes), damaged
        except (CheckpointError, StorageError) as error:
            if isinstance(error, StorageError) and error.reason not in ("absent", "damaged"):
                raise
            damaged.append(step)
            warnings.warn(f"checkpoint of step {step} is not used: {error}", stacklevel=2)
    return None, damaged


def exactly(shelf: Shelf, step: int, *, hashes: bool) -> Receipt:
    """The checkpoint of one step, or `CheckpointError`."""
    steps = shelf.steps()
    if step not in steps:
        there = ", ".join(str(s) for s in steps) or "none"
        raise CheckpointError(
            f"{shelf.store.url()}: no checkpoint of step {step} (there are: {there}). "
            "Set run.resume to one of them or to auto."
        )
    return shelf.check(step, hashes=hashes)


def load_tensors(directory: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Fill model and optimizers from a checkpoint's directory; nothing may be missing or left over."""
    for optimizer in optimizers:
        materialise_optimizer(optimizer)
    notes = read_notes(directory)
    stored = {
        part: frozenset(dcp.tensor_facts(dcp.read_index(directory / part)))
        for part in (MODEL_DIR, OPTIMIZER_DIR)
    }
    scalars = notes["scalars"]
    drop_untouched(model, optimizers, stored[OPTIMIZER_DIR] | frozenset(scalars))
    live = collect(model, optimizers)
    _nothing_left_over(directory, live, stored, notes)
    dcp.read_into(directory / MODEL_DIR, live.model)
    dcp.read_into(directory / OPTIMIZER_DIR, live.optimizer)
    set_scalars(model, optimizers, scalars)


def _nothing_left_over(
    directory: Path, live: Tensors, stored: dict[str, frozenset[str]], notes: dict[str, Any]
) -> None:
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


def read_notes(directory: Path) -> dict[str, Any]:
    """`tensors.json`: tied names, optimizer scalars, group settings."""
    place = directory / TENSORS_NAME
    try:
        notes = json.loads(place.read_bytes())
        return {
            "tied": dict(notes["tied"]),
            "scalars": dict(notes["scalars"]),
            "groups": notes["groups"],
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
        if getattr(state, name) != getattr(receipt, name):
            raise CheckpointError(
                f"{place}: {name} is {getattr(state, name)}, the receipt says {getattr(receipt, name)}. "
                "Use another checkpoint."
            )
    return state


def load_rng(directory: Path, receipt: Receipt, world: World, seed: int) -> None:
    """This rank's generators as they were; after a change of world size derived from seed, step and rank."""
    if receipt.world_size == world.world_size:
        rng.restore(directory / rng_name(world.rank))
    else:
        rng.derive(seed=seed, step=receipt.step, rank=world.rank)
