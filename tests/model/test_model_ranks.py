"""A model sharded over two ranks starts with the same weights and learns as in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_fsdp2_ranks_train_as_one_process_does(optimizer: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("model_ranks.py")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(script.parent.parent), os.environ.get("PYTHONPATH", "")]
        ),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "default",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), "2", str(tmp_path / "rendezvous"), optimizer],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
