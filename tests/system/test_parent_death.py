"""A process that asks for it ends when its parent is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]])
time.sleep(60)
"""
CHILD = """
import os, time
from stream_pretrain.system.parent_death import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone signals a child")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    words = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
        until = time.monotonic() + 20
        while is_alive(child) and time.monotonic() < until:
            time.sleep(0.01)
        assert not is_alive(child)
