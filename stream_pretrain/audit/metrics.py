"""Read the recorded steps of a run from its `metrics.jsonl`, local or in a bucket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stream_pretrain.observe.jsonl import read_events
from stream_pretrain.storage.store import Store
from stream_pretrain.train.run_dir import METRICS_NAME


def step_events(run: Store) -> Iterator[dict[str, Any]]:
    """Yield every `step` event in order.

    Raises:
        StorageError: there is no `metrics.jsonl`, or it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="metrics-") as directory:
        path = Path(directory) / METRICS_NAME
        path.write_bytes(run.read(METRICS_NAME))
        yield from (dict(event) for event in read_events(path) if event["event"] == "step")


def digest_at(run: Store, data_step: int) -> str | None:
    """Return the data digest that was recorded at a data step, or None if there is none."""
    for event in step_events(run):
        if event.get("data_step", event["step"]) == data_step:
            return str(event["digest"])
    return None
