"""What a run left behind, for comparisons: steps from metrics, sample ids from the forked_runs's
record, final weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stream_pretrain.audit.compare_runs import FinalState, read_final_state
from stream_pretrain.observe.jsonl import read_events
from stream_pretrain.storage.store import open_store

REPEATED = ("loss", "lr", "grad_norm", "digest", "epoch", "sample_in_epoch", "tokens", "data_step")


def steps(run: Path) -> dict[int, dict[str, Any]]:
    """Step -> the numbers that a resume must repeat exactly; each step may appear once only."""
    found: dict[int, dict[str, Any]] = {}
    for event in read_events(run / "metrics.jsonl"):
        if event["event"] == "step":
            assert event["step"] not in found, f"step {event['step']} appears twice"
            found[event["step"]] = {name: event[name] for name in REPEATED}
    return found


def evaluations(run: Path) -> list[tuple[int, float]]:
    """(step, loss) of every evaluation."""
    events = read_events(run / "metrics.jsonl")
    return [(e["step"], e["loss"]) for e in events if e["event"] == "evaluation"]


def recorded(record: Path) -> Mapping[int, list[int]]:
    """Data step -> sample ids. Steps taken again after a kill must have had the same ids."""
    found: dict[int, list[int]] = {}
    for line in record.read_text().splitlines():
        try:
            step, ids = json.loads(line)
        except ValueError:
            continue  # torn by a kill
        assert found.setdefault(step, ids) == ids, f"step {step} had other samples after a restart"
    return found


def end_of(run: Path) -> FinalState:
    """The run's newest whole checkpoint and losses."""
    return read_final_state(open_store(run))


def assert_same(run: Path, other: Path) -> None:
    """Same steps, evaluations, digest and weights, bit for bit."""
    assert steps(run) == steps(other)
    assert evaluations(run) == evaluations(other)
    left, right = end_of(run), end_of(other)
    assert (left.step, left.digest, left.weights) == (right.step, right.digest, right.weights)
