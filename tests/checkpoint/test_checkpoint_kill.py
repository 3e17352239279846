"""SIGKILL at random instants, most of them while a save is under way: every start finds a whole
checkpoint and restores what an uninterrupted run has at that step, bit for bit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def soak(tmp_path: Path, run: str, kills: int, *options: str) -> dict[str, Any]:
    program = Path(__file__).with_name("checkpoint_soak.py")
    locations = ["--run", run, "--staging", str(tmp_path / "staging")]
    command = [sys.executable, str(program), *locations, "--kills", str(kills), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.stdout, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert summary["errors"] == []
    assert summary["wrong"] == []
    assert summary["warnings"] == [], "a kill damages no checkpoint"
    assert summary["ended"]
    assert summary["kills"] == kills
    return summary


def test_killed_saves_on_a_local_disk(tmp_path: Path) -> None:
    summary = soak(tmp_path, str(tmp_path / "run"), 8, "--longest", "0.4")
    assert summary["resumed_beyond_zero"] > 4
    assert summary["mid_save"] > 0
    left = [p.name for p in (tmp_path / "run/checkpoints").iterdir()]
    assert len(left) == 2, f"leftovers of dead saves are removed: {left}"


def test_killed_uploads_to_a_bucket(bucket: str, tmp_path: Path) -> None:
    summary = soak(tmp_path, f"{bucket}/run", 4, "--longest", "0.4")
    assert summary["resumed_beyond_zero"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
def test_killed_saves_of_two_ranks(tmp_path: Path, kind: str) -> None:
    summary = soak(tmp_path, str(tmp_path / "run"), 10, "--ranks", "2", "--kind", kind)
    assert summary["resumed_beyond_zero"] > 4


@pytest.mark.slow
def test_killed_uploads_of_two_ranks(bucket: str, tmp_path: Path) -> None:
    summary = soak(tmp_path, f"{bucket}/run", 10, "--ranks", "2")
    assert summary["resumed_beyond_zero"] > 4
