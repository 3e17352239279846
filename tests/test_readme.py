"""Every block of the README does what it says, in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- (\w+): (\w+) -->\n```(\w+)\n(.*?)```", re.DOTALL)
PLAY = "ROMEO:\nBut soft, what light through yonder window breaks?\n\nJULIET:\nAy me!\n\n"


def blocks() -> dict[str, tuple[str, str]]:
    """Name -> (language, text) of the blocks that a test runs."""
    found = BLOCK.findall((ROOT / "README.md").read_text())
    return {name: (language, text) for kind, name, language, text in found if kind == "test"}


def test_every_block_of_commands_is_marked_for_a_test_or_for_ci() -> None:
    text = (ROOT / "README.md").read_text()
    fenced = len(re.findall(r"^```(?:sh|python)$", text, re.MULTILINE))
    assert fenced == len(BLOCK.findall(text))


@pytest.mark.slow
def test_the_blocks_run_in_the_order_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(PLAY * 400)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    environment = {
        **os.environ,
        "PATH": f"{sysconfig.get_paths()['scripts']}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    for name, (language, text) in blocks().items():
        shell = ["bash", "-euo", "pipefail", "-c", _short(text)]
        command = shell if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"block {name}:\n{done.stdout}{done.stderr}"


def _short(text: str) -> str:
    """The same commands, with a run of 30 steps where the page has one of 2,000."""
    return text.replace(
        " --run.dir run\n", " --run.dir run --stop.max_steps 30 --schedule.warmup 5\n"
    )
