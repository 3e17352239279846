"""Checkpoints over several ranks, and from one topology to another.

All stages of this module run in one program, forked from one import.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = [("plain", 1), ("ddp", 2), ("fsdp2", 2), ("hsdp", 4), ("fsdp2", 3), ("plain", 1)]
Results = dict[str, list[list[dict[str, Any]]]]


def run_stages(directory: Path, scenes: dict[str, list[dict[str, Any]]]) -> Results:
    """For each scene, all ranks' results of each of its stages, in order."""
    stages = [stage for scene in scenes.values() for stage in scene]
    (directory / "stages.json").write_text(json.dumps(stages))
    program = Path(__file__).with_name("checkpoint_ranks.py")
    files = [str(directory / "stages.json"), str(directory / "out")]
    command = [sys.executable, "-W", "ignore::UserWarning", str(program), *files]
    subprocess.run(command, check=True, timeout=600)
    results = iter(json.loads((directory / "out").read_text()))
    return {name: list(itertools.islice(results, len(scene))) for name, scene in scenes.items()}


def without_errors(scene: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The same results, if no rank of any stage failed."""
    for rank in itertools.chain.from_iterable(scene):
        assert "error" not in rank, rank["error"]
    return scene


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs of this module are."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(directory: Path) -> Results:
    """The results of all scenes."""
    apart = {"run": f"{directory}/node{{node}}", "ranks": 2, "local": 1, "steps": 1}
    scenes = {
        "moved": [
            {"run": f"{directory}/moved", "kind": kind, "ranks": ranks, "steps": 3}
            for kind, ranks in PATH
        ],
        "alone": [
            {"run": f"{directory}/alone", "kind": "plain", "ranks": 1, "steps": 3 * len(PATH)}
        ],
        "rank_group": [{"run": "unused", "kind": "rank_group", "ranks": 2}],
        "failing": [{"run": f"{directory}/failing", "kind": "fsdp2", "ranks": 2, "fail": 1}],
        "apart": [{**apart, "kind": "fsdp2"}],
        "shared": [{**apart, "kind": "fsdp2", "run": f"{directory}/shared"}],
    }
    for kind in ("fsdp2", "ddp"):
        part = {"run": f"{directory}/{kind}", "kind": kind, "ranks": 2, "steps": 4}
        whole = {**part, "run": f"{directory}/{kind}-whole", "steps": 8, "save_each": True}
        scenes[kind] = [part, part, whole]
    return run_stages(directory, scenes)


def test_checkpoint_moves_between_topologies(results: Results) -> None:
    moved, (uninterrupted,) = without_errors(results["moved"]), without_errors(results["alone"])
    for before, after in itertools.pairwise(moved):
        assert after[0]["restored"] == before[0]["end"], "every bit of every tensor"
    losses = [loss for stage in moved for loss in stage[0]["losses"]]
    assert losses == pytest.approx(uninterrupted[0]["losses"], rel=2e-5)
    assert losses[:3] == uninterrupted[0]["losses"][:3]
    assert moved[-1][0]["digest"] == uninterrupted[0]["digest"]
    assert moved[-1][0]["step"] == 3 * len(PATH)


@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
def test_same_topology_goes_on_bit_for_bit(results: Results, directory: Path, kind: str) -> None:
    _, second, uninterrupted = without_errors(results[kind])
    for rank in range(2):
        assert second[rank]["losses"] == uninterrupted[rank]["losses"][4:]
        assert second[rank]["end"] == uninterrupted[rank]["end"]
        assert second[rank]["random"] == uninterrupted[rank]["random"]
    kept = sorted(p.name for p in (directory / f"{kind}-whole/checkpoints").glob("step-*"))
    assert kept == ["step-00000006", "step-00000007", "step-00000008"]


def test_what_fails_on_one_rank_is_raised_on_all(results: Results) -> None:
    ((rank0, rank1),) = without_errors(results["rank_group"])
    assert rank0["all_ranks"] == [0, 10]
    assert rank1["all_ranks"] == []
    assert (rank0["rank0"], rank1["rank0"]) == ("from 0", "from 0")
    assert (rank0["scatter"], rank1["scatter"]) == ("zero", "one")
    assert rank0["all_ranks raises"] == "StorageError: rank 1: disk is full"
    assert rank1["all_ranks raises"] == "StorageError: disk is full"
    assert rank0["rank0 raises"] == "KeyError: 'x'"
    assert rank1["rank0 raises"] == "CheckpointError: rank 0: KeyError: 'x'"
    assert rank1["scatter raises"] == "OwnerError: rank 0: taken"
    assert rank0["after"] == rank1["after"] == "still in step"


def test_save_that_fails_on_one_rank_fails_on_all_and_the_next_works(results: Results) -> None:
    ((rank0, rank1),) = without_errors(results["failing"])
    assert "rank 1: OSError: [Errno 28] No space left" in rank0["error raised"]
    assert "saving step 1: No space left on device" in rank1["error raised"]
    assert (rank0["saved"], rank1["saved"]) == (1, 1)


def test_local_run_directory_that_nodes_do_not_share_is_refused(
    results: Results, directory: Path
) -> None:
    for rank in results["apart"][0]:
        assert "is not the same directory on node 1 as on node 0" in rank["error"]
    (shared,) = without_errors(results["shared"])
    assert shared[0]["step"] == 1
    assert [p.name for p in (directory / "shared/checkpoints").iterdir()] == ["step-00000001"]
