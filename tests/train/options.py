"""Short real runs with one setting changed, and what they left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from forked_runs import ForkedRuns
from runs import steps
from small import fit_arguments

from stream_pretrain.checkpoint.read_model import read_model_state
from stream_pretrain.observe.jsonl import read_events
from stream_pretrain.storage.store import open_store

SHORT: dict[str, object] = {
    "stop__max_epochs": 9,
    "stop__max_steps": 6,
    "schedule__warmup": 2,
    "evaluation__every": 6,
    "checkpoint__every": 3,
}


class Short:
    """Starts runs of six steps; `short("name", compute__strategy="fsdp2", ranks=2)` gives its
    directory."""

    def __init__(self, forked_runs: ForkedRuns, dataset: Path, root: Path) -> None:
        self.forked_runs, self.dataset, self.root = forked_runs, dataset, root

    def arguments(
        self, name: str, *, ranks: int = 1, nodes: int = 1, **changes: object
    ) -> list[str]:
        place = self.root / name
        place.mkdir(exist_ok=True)
        devices: dict[str, object] = {}
        if ranks > 1:
            devices = {"compute__devices": ranks // nodes, "compute__nodes": nodes}
        return fit_arguments(self.dataset, place / "run", **{**SHORT, **devices, **changes})

    def __call__(self, name: str, *, ranks: int = 1, nodes: int = 1, **changes: object) -> Path:
        """Run to the end, which must be a good one. Again with the same name: the run goes on."""
        arguments = self.arguments(name, ranks=ranks, nodes=nodes, **changes)
        log = self.root / name / "log"
        done = self.forked_runs.run(arguments, log, ranks=ranks, nodes=nodes)
        assert done.codes == [0] * ranks, done.log
        return self.root / name / "run"

    def refused(self, name: str, *, code: int = 2, ranks: int = 1, **changes: object) -> str:
        """What a run says that must not start; nothing is written."""
        arguments = self.arguments(name, ranks=ranks, **changes)
        done = self.forked_runs.run(arguments, self.root / name / "log", ranks=ranks)
        assert done.codes == [code] * ranks, done.log
        assert "Traceback" not in done.log
        assert not (self.root / name / "run" / "config.yaml").exists()
        return done.log


def losses(run: Path) -> list[float]:
    """Loss of every step, in order."""
    return [numbers["loss"] for _, numbers in sorted(steps(run).items())]


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Every event of a kind."""
    return [event for event in read_events(run / "metrics.jsonl") if event["event"] == kind]


def weights(run: Path, step: int | None = None) -> dict[str, torch.Tensor]:
    """Tensors of the model in a checkpoint."""
    return read_model_state(open_store(run), step)[0]


def changed(run: Path, other: Path, step: int | None = None) -> set[str]:
    """Names of weights that differ in a bit between two runs."""
    left, right = weights(run, step), weights(other, step)
    assert left.keys() == right.keys()
    return {name for name in left if not torch.equal(left[name], right[name])}
