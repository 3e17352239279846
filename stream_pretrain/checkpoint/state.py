"""Hold the counters and records that a restart needs: `TrainState` and its JSON.

There are no tensors in it and nothing that can be recomputed: the position in the data is a
function of `phase_start` and `data_step`, and the plan is made again from the configuration.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from stream_pretrain.errors import CheckpointError

STATE_SCHEMA_VERSION = 1
EMPTY_DIGEST = "0" * 16


@dataclass(kw_only=True)
class TrainState:
    """Counters and records of one run, changed by the loop and saved with every checkpoint.

    `step` counts optimizer updates, `data_step` global batches consumed (skipped ones included),
    `tokens` targets trained on, `seconds` training time over all starts. `phase` is the stretch
    with one fingerprint and `phase_start` the data step at which it began. `digest` is the data
    digest after `data_step`, 16 hex digits. `skipped` holds `[first, last]` data steps, ascending.
    `spike` are the loss statistics that detect a spike, `best` the best evaluation so far (`step`,
    `loss`), `precision` the loss scale of `16-mixed` (empty with any other precision), `phases` one
    record for every phase begun.
    """

    step: int = 0
    data_step: int = 0
    tokens: int = 0
    phase: int = 0
    phase_start: int = 0
    digest: str = EMPTY_DIGEST
    fingerprint: dict[str, Any] = field(default_factory=dict)
    phases: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    samples_per_stream: dict[str, int] = field(default_factory=dict)
    spike: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)
    run_id: str = ""
    world_size: int = 1

    def to_json(self) -> str:
        """Return all fields as indented JSON with sorted keys and a final newline."""
        body = {"schema_version": STATE_SCHEMA_VERSION, **asdict(self)}
        return json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, location: str) -> TrainState:
        """Parse and check a state; `location` names it in errors.

        Raises:
            CheckpointError: the text is not JSON, a field is missing or unknown, or a value is
                impossible.
        """
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise CheckpointError(
                f"{location}: not JSON ({error}). Use another checkpoint."
            ) from error
        faults = _field_faults(raw)
        if not faults:
            del raw["schema_version"]
            state = cls(**raw)
            faults = _value_faults(state)
        if faults:
            raise CheckpointError(f"{location}: {'; '.join(faults)}. Use another checkpoint.")
        return state

    def copy(self) -> TrainState:
        """Return a deep copy."""
        return TrainState.from_json(self.to_json(), "the running state")

    def replace_with(self, other: TrainState) -> None:
        """Copy every field of `other` into this object, to which other code holds references."""
        for entry in fields(self):
            setattr(self, entry.name, getattr(other, entry.name))

    def skip(self, first: int, last: int) -> None:
        """Record data steps `first..last` as not trained on; ranges that touch are joined."""
        if not 1 <= first <= last:
            raise ValueError(f"a skipped range must be 1 <= first <= last, got {first}..{last}")
        joined: list[list[int]] = []
        for low, high in sorted([*self.skipped, [first, last]]):
            if joined and low <= joined[-1][1] + 1:
                joined[-1][1] = max(joined[-1][1], high)
            else:
                joined.append([low, high])
        self.skipped = joined

    def is_skipped(self, data_step: int) -> bool:
        """Return True when `data_step` lies in a recorded range."""
        return any(first <= data_step <= last for first, last in self.skipped)


_FIELD_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "step": int,
    "data_step": int,
    "tokens": int,
    "phase": int,
    "phase_start": int,
    "digest": str,
    "fingerprint": dict,
    "phases": list,
    "skipped": list,
    "seconds": (int, float),
    "samples_per_stream": dict,
    "spike": dict,
    "best": dict,
    "precision": dict,
    "run_id": str,
    "world_size": int,
}


def _field_faults(raw: Any) -> list[str]:
    """Return what is missing, unknown or of the wrong type; empty when all fields can be read."""
    if not isinstance(raw, dict) or "schema_version" not in raw:
        return ["not a training state (no schema_version)"]
    if raw["schema_version"] != STATE_SCHEMA_VERSION:
        return [
            f"state schema {raw['schema_version']!r}, this version reads {STATE_SCHEMA_VERSION}"
        ]
    names = {entry.name for entry in fields(TrainState)}
    faults = [f"{name} is missing" for name in sorted(names - raw.keys())]
    faults += [f"{name} is unknown" for name in sorted(raw.keys() - names - {"schema_version"})]
    for name, types in _FIELD_TYPES.items():
        value = raw.get(name)
        if name in raw and (isinstance(value, bool) or not isinstance(value, types)):
            faults.append(f"{name} is {value!r}")
    return faults


def _value_faults(state: TrainState) -> list[str]:
    """Return the values that no run can reach."""
    faults = [
        f"{name} is {getattr(state, name)}"
        for name in ("step", "data_step", "tokens", "phase", "phase_start")
        if getattr(state, name) < 0
    ]
    if not state.seconds >= 0:
        faults.append(f"seconds is {state.seconds}")
    if state.world_size < 1:
        faults.append(f"world_size is {state.world_size}")
    if len(state.digest) != 16 or set(state.digest) - set("0123456789abcdef"):
        faults.append(f"digest is {state.digest!r}, not 16 hex digits")
    if not state.phase_start <= state.data_step:
        faults.append(f"phase_start {state.phase_start} is beyond data_step {state.data_step}")
    scale = state.precision.get("scale", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        faults.append(f"precision has the loss scale {scale!r}")
    for entry in state.skipped:
        pair = isinstance(entry, list) and len(entry) == 2 and all(type(n) is int for n in entry)
        if not pair or not 1 <= entry[0] <= entry[1]:
            faults.append(f"skipped holds {entry!r}, not [first, last]")
    return faults
