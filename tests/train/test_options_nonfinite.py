"""A step whose gradient is not finite: left out and counted, or the end of the run.

The fault is a real one: an embedding row that is infinite, so that a step fails where its samples
hold that token, and only there.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from forked_runs import ForkedRuns, Kill
from options import Short, events, weights
from runs import end_of, steps

from stream_pretrain.export.litgpt import export_litgpt
from stream_pretrain.export.trained_model import read_trained_model
from stream_pretrain.storage.store import open_store

BAD_BYTE = ord("v")
CHANGES: dict[str, object] = {
    "checkpoint__every": 1,
    "checkpoint__keep_last": 20,
    "stop__max_steps": 10,
    "batch__global_size": 2,
    "batch__micro_size": 1,
    "evaluation__every": 100,
    "data__shuffle__seed": 5,
}


@pytest.fixture(scope="module")
def short(
    forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Short:
    return Short(forked_runs, dataset, tmp_path_factory.mktemp("nonfinite"))


@pytest.fixture(scope="module")
def poisoned(short: Short) -> Path:
    """A LitGPT checkpoint in which one byte has an infinite embedding."""
    out = short.root / "poisoned"
    export_litgpt(read_trained_model(open_store(short("plain", stop__max_steps=2)), None), out)
    file = out / "lit_model.pth"
    saved = torch.load(file, weights_only=True)
    saved["transformer.wte.weight"][BAD_BYTE] = math.inf
    torch.save(saved, file)
    return out


def applied(run: Path) -> dict[int, bool]:
    return {event["step"]: event["applied"] for event in events(run, "step")}


WAYS: dict[str, tuple[int, dict[str, object]]] = {
    "adamw, decided on the device": (1, {}),
    "sgd, decided on the host": (1, {"optimizer__name": "torch.optim.SGD"}),
    "muon": (1, {"optimizer__name": "muon"}),
    "ddp": (2, {"compute__strategy": "ddp"}),
    "fsdp2": (2, {"compute__strategy": "fsdp2"}),
    "muon under fsdp2": (2, {"compute__strategy": "fsdp2", "optimizer__name": "muon"}),
}
QUICK = ("adamw, decided on the device", "fsdp2")


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        pytest.param(*way, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, way in WAYS.items()
    ],
)
def test_a_skipped_step_leaves_every_weight_as_it_was(
    ranks: int, changes: dict[str, object], short: Short, poisoned: Path, tmp_path: Path
) -> None:
    own = Short(short.forked_runs, short.dataset, tmp_path)
    run = own("run", ranks=ranks, model__init_from=poisoned, **CHANGES, **changes)
    found = applied(run)
    assert set(found.values()) == {True, False}
    for event in events(run, "step"):
        assert event["applied"] == (math.isfinite(event["loss"]))
    for step in range(2, 11):
        before, after = weights(run, step - 1), weights(run, step)
        moved = [name for name in before if not torch.equal(before[name], after[name])]
        assert bool(moved) == found[step], (step, moved)
    log = (tmp_path / "run" / "log").read_text()
    assert log.count("update left out") == list(found.values()).count(False)


def test_a_skipped_step_is_skipped_again_after_a_kill(
    short: Short, poisoned: Path, tmp_path: Path
) -> None:
    settings = {**CHANGES, "model__init_from": poisoned}
    own = Short(short.forked_runs, short.dataset, tmp_path)
    whole = own("whole", **settings)
    arguments = own.arguments("killed", **settings)
    killed = own.forked_runs.run(arguments, tmp_path / "log", kill=Kill("updated", 7))
    assert killed.code == -9
    run = own("killed", **settings)
    assert applied(run) == applied(whole)
    assert repr(steps(run)) == repr(steps(whole))  # NaN is not equal to itself
    assert end_of(run).weights == end_of(whole).weights


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stop_keeps_the_checkpoint_from_before(
    ranks: int, short: Short, poisoned: Path, tmp_path: Path
) -> None:
    own = Short(short.forked_runs, short.dataset, tmp_path)
    settings = {**CHANGES, "model__init_from": poisoned, "optimizer__on_nonfinite": "stop"}
    arguments = own.arguments("run", ranks=ranks, **settings)
    done = own.forked_runs.run(arguments, tmp_path / "log", ranks=ranks)
    assert done.codes == [1] * ranks
    run = tmp_path / "run" / "run"
    first = min(step for step, good in applied(run).items() if not good)
    assert f"step {first}: the gradient norm is not finite" in done.log
    assert first > 2
    saved = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert saved[-1] == f"step-{first - 1:08d}"
