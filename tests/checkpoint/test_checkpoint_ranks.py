"""Checkpoints over several ranks, and from one topology to another."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run_stages(tmp_path: Path, stages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """All ranks' results of each stage, none with an error."""
    (tmp_path / "stages.json").write_text(json.dumps(stages))
    program = Path(__file__).with_name("checkpoint_ranks.py")
    command = [sys.executable, str(program), str(tmp_path / "stages.json"), str(tmp_path / "out")]
    subprocess.run(command, check=True, timeout=300)
    results: list[list[dict[str, Any]]] = json.loads((tmp_path / "out").read_text())
    for stage in results:
        for rank in stage:
            assert "error" not in rank, rank["error"]
    return results


def test_checkpoint_moves_between_topologies(tmp_path: Path) -> None:
    path = [("plain", 1), ("ddp", 2), ("fsdp2", 2), ("fsdp2", 4), ("ddp", 4), ("plain", 1)]
    run = str(tmp_path / "run")
    stages = [{"run": run, "kind": kind, "ranks": ranks, "steps": 3} for kind, ranks in path]
    alone = {"run": str(tmp_path / "alone"), "kind": "plain", "ranks": 1, "steps": 3 * len(path)}
    *moved, uninterrupted = run_stages(tmp_path, [*stages, alone])
    for before, after in itertools.pairwise(moved):
        assert after[0]["restored"] == before[0]["end"], "every bit of every tensor"
    losses = [loss for stage in moved for loss in stage[0]["losses"]]
    assert losses == pytest.approx(uninterrupted[0]["losses"], rel=2e-5)
    assert losses[:3] == uninterrupted[0]["losses"][:3]
    assert moved[-1][0]["digest"] == uninterrupted[0]["digest"]
    assert moved[-1][0]["step"] == 18


@pytest.mark.parametrize(("kind", "ranks"), [("fsdp2", 2), ("ddp", 2)])
def test_same_topology_goes_on_bit_for_bit(tmp_path: Path, kind: str, ranks: int) -> None:
    part = {"run": str(tmp_path / "run"), "kind": kind, "ranks": ranks, "steps": 4}
    whole = {**part, "run": str(tmp_path / "whole"), "steps": 8, "save_each": True}
    _, second, uninterrupted = run_stages(tmp_path, [part, part, whole])
    for rank in range(ranks):
        assert second[rank]["losses"] == uninterrupted[rank]["losses"][4:]
        assert second[rank]["end"] == uninterrupted[rank]["end"]
        assert second[rank]["random"] == uninterrupted[rank]["random"]
    kept = sorted(p.name for p in (tmp_path / "whole/checkpoints").glob("step-*"))
    assert kept == ["step-00000006", "step-00000007", "step-00000008"]
