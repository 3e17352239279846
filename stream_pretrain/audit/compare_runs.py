"""Read the final state of runs, and compare two of them bit for bit.

What goes in are local run directories; what comes out is the final state of each, and a list of
differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

from stream_pretrain.checkpoint.read_model import read_model_state
from stream_pretrain.observe.jsonl import read_events
from stream_pretrain.storage.store import Store


@dataclass(frozen=True, kw_only=True)
class FinalState:
    """The final state of a run.

    `losses` are by step; `weights` is the xxh3-128 of all tensors of the newest checkpoint.
    """

    step: int
    digest: str
    weights: str
    losses: Mapping[int, float]

    @property
    def final_loss(self) -> float:
        """The loss of the last step."""
        return self.losses[max(self.losses)]


def read_final_state(run: Store) -> FinalState:
    """Read the newest complete checkpoint and the metrics of a local run directory."""
    tensors, state = read_model_state(run)
    losses = {
        event["step"]: event["loss"]
        for event in read_events(run.path / "metrics.jsonl")
        if event["event"] == "step"
    }
    return FinalState(
        step=state["step"], digest=state["digest"], weights=hash_tensors(tensors), losses=losses
    )


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the xxh3-128 of the names and bytes of all tensors, in the order of their names."""
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        digest.update(name.encode())
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def differences(left: FinalState, right: FinalState) -> list[str]:
    """Return one line for each difference between two final states."""
    lines = []
    values: list[tuple[str, Any, Any]] = [
        ("step", left.step, right.step),
        ("data digest", left.digest, right.digest),
        ("weights", left.weights, right.weights),
    ]
    lines += [f"{name}: {a} and {b}" for name, a, b in values if a != b]
    steps = sorted({*left.losses, *right.losses})
    differing = [step for step in steps if left.losses.get(step) != right.losses.get(step)]
    if differing:
        step = differing[0]
        lines.append(
            f"loss differs at {len(differing)} steps, first at {step}: "
            f"{left.losses.get(step)} and {right.losses.get(step)}"
        )
    return lines
