"""Run the commands as child processes, and kill them with SIGKILL.

Everything that compares an interrupted run with an uninterrupted one starts its processes here. The
modules of the commands are not imported into this process.
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


def start_command(
    module: Sequence[str], arguments: Sequence[str], log: Path
) -> subprocess.Popen[bytes]:
    """Start `python -m module arguments` in a new session; append its output to `log`."""
    command = [sys.executable, "-m", *module, *arguments]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


def run_command(module: Sequence[str], arguments: Sequence[str], log: Path) -> None:
    """Run a command to its end.

    Raises:
        TrainingError: its exit code is not 0; the message has the last lines of its log.
    """
    code = start_command(module, arguments, log).wait()
    if code != 0:
        command = " ".join(module)
        raise TrainingError(
            f"{command} exited with code {code}. The end of {log}:\n{last_lines(log)}"
        )


def run_and_kill(
    module: Sequence[str], arguments: Sequence[str], log: Path, is_due: Callable[[], bool]
) -> None:
    """Run a command until `is_due()`, then kill all processes of its session with SIGKILL.

    Raises:
        TrainingError: the command ended before it could be killed.
    """
    child = start_command(module, arguments, log)
    try:
        while not is_due():
            if child.poll() is not None:
                raise TrainingError(
                    f"{' '.join(module)} exited with code {child.returncode} before it could be "
                    f"killed. The end of {log}:\n{last_lines(log)}"
                )
            time.sleep(POLL_S)
    finally:
        kill_session(child)


def kill_session(child: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to all processes of the child's session, and wait for the child's end."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def last_lines(log: Path, lines: int = 12) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def last_step(metrics: Path) -> int:
    """Return the newest step that a run has recorded, 0 before the first."""
    if not metrics.exists():
        return 0
    return max(
        (event["step"] for event in read_events(metrics) if event["event"] == "step"), default=0
    )
