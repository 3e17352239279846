"""Numbers that a run has written down. In: a run directory. Out: its steps. Reads `metrics.jsonl`
and nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stream_pretrain.observe.jsonl import read_events
from stream_pretrain.storage.store import Store
from stream_pretrain.train.run_dir import METRICS_NAME


def step_events(run: Store) -> Iterator[dict[str, Any]]:
    """Every `step` event in order.

    Raises:
        StorageError: there are no metrics, or they cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="metrics-") as place:
        path = Path(place) / METRICS_NAME
        path.write_bytes(run.read(METRICS_NAME))
        yield from (dict(event) for event in read_events(path) if event["event"] == "step")


def digest_at(run: Store, data_step: int) -> str | None:
    """The data digest that was recorded at a data step, where a line says so."""
    for event in step_events(run):
        if event.get("data_step", event["step"]) == data_step:
            return str(event["digest"])
    return None
