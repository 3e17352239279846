"""Two runs, side by side. In: run directories. Out: what each ended with and whether they are the
same, bit for bit.
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
    """What a run ended with. `losses` by step; `weights` is the xxh3-128 of all tensors of the
    newest checkpoint.
    """

    step: int
    digest: str
    weights: str
    losses: Mapping[int, float]

    @property
    def final_loss(self) -> float:
        """Loss of the last step."""
        return self.losses[max(self.losses)]


def ending(run: Store) -> FinalState:
    """Read a local run directory's newest whole checkpoint and its metrics."""
    tensors, state = read_model_state(run)
    losses = {
        event["step"]: event["loss"]
        for event in read_events(run.path / "metrics.jsonl")
        if event["event"] == "step"
    }
    return FinalState(
        step=state["step"], digest=state["digest"], weights=hash_of(tensors), losses=losses
    )


def hash_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """xxh3-128 over names and bytes of all tensors, in the order of their names."""
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        digest.update(name.encode())
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def differences(left: FinalState, right: FinalState) -> list[str]:
    """What differs between two endings, one line each; empty when they are the same."""
    lines = []
    rows: list[tuple[str, Any, Any]] = [
        ("step", left.step, right.step),
        ("data digest", left.digest, right.digest),
        ("weights", left.weights, right.weights),
    ]
    lines += [f"{name}: {a} and {b}" for name, a, b in rows if a != b]
    steps = sorted({*left.losses, *right.losses})
    apart = [step for step in steps if left.losses.get(step) != right.losses.get(step)]
    if apart:
        step = apart[0]
        lines.append(
            f"loss differs at {len(apart)} steps, first at {step}: "
            f"{left.losses.get(step)} and {right.losses.get(step)}"
        )
    return lines
