"""A worker does not outlive the process that it works for, whatever it is in the middle of."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

SCRIPT = """
import multiprocessing, os, time
from convert.jobs.engines.local_engine import end_with_parent

def hold():
    end_with_parent()
    print(os.getpid(), flush=True)
    sum(range(10**11))  # never lets go of the interpreter

if __name__ == "__main__":
    multiprocessing.get_context("forkserver").Process(target=hold, daemon=True).start()
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_that_holds_the_interpreter_ends_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        worker = int(child.stdout.readline())
        assert is_alive(worker)
        child.kill()
        end = time.monotonic() + 20
        while is_alive(worker) and time.monotonic() < end:
            time.sleep(0.01)
        assert not is_alive(worker)
