"""Run the commands as child processes. In: arguments. Out: exit codes; real SIGKILLs. Imports
nothing of what it starts.

Everything that compares an interrupted run with an uninterrupted one drives real processes through
this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stream_pretrain.errors import TrainingError
from stream_pretrain.observe.jsonl import read_events

POLL_S = 0.02
FIT = ("stream_pretrain.cli", "fit")
CONVERT = ("convert.cli",)


def start(module: Sequence[str], arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `python -m module arguments` in a session of its own; both its outputs are appended to
    `log`.
    """
    command = [sys.executable, "-m", *module, *arguments]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


def run(module: Sequence[str], arguments: Sequence[str], log: Path) -> None:
    """Run to the end.

    Raises:
        TrainingError: it left with anything but 0; the message has the last lines of its log.
    """
    code = start(module, arguments, log).wait()
    if code != 0:
        raise TrainingError(f"{' '.join(module)} left with {code}. The end of {log}:\n{tail(log)}")


def run_and_kill(
    module: Sequence[str], arguments: Sequence[str], log: Path, when: Callable[[], bool]
) -> None:
    """Run until `when()`, then kill the process and its session with SIGKILL.

    Raises:
        TrainingError: it ended before it could be killed.
    """
    child = start(module, arguments, log)
    try:
        while not when():
            if child.poll() is not None:
                raise TrainingError(
                    f"{' '.join(module)} left with {child.returncode} before it could be killed. "
                    f"The end of {log}:\n{tail(log)}"
                )
            time.sleep(POLL_S)
    finally:
        kill(child)


def kill(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the child and all processes of its session; returns when it is gone."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def last_step(metrics: Path) -> int:
    """The newest step that a run has written down, 0 before the first."""
    if not metrics.exists():
        return 0
    return max(
        (event["step"] for event in read_events(metrics) if event["event"] == "step"), default=0
    )
