"""The one check command: `python tests/check.py`. Lint, format, types, import contracts, tests;
stops at the first failure.

With `--all`, or where the environment variable CI is set, tests marked `slow` run too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sysconfig.get_paths()["scripts"])


def commands(everything: bool) -> list[list[str]]:
    """The checks in order; the tests are last."""
    tests = ["pytest", "-q", "-n", "2", "--dist", "loadfile", "--durations=15"]
    return [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["lint-imports"],
        tests if everything else [*tests, "-m", "not slow"],
    ]


def main() -> int:
    """Run the checks; the exit code of the first that fails."""
    everything = "--all" in sys.argv[1:] or bool(os.environ.get("CI"))
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    for command in commands(everything):
        print("==", " ".join(command), flush=True)
        done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, env=environment)
        if done.returncode != 0:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
