"""Check that a configuration resumes exactly on this machine.

The configuration is trained twice by child processes of `stream-pretrain fit`. The second run is
killed with SIGKILL at steps that are drawn from the run's seed, and both final states are compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_pretrain.audit import subprocess_runs
from stream_pretrain.audit.compare_runs import FinalState, differences, read_final_state
from stream_pretrain.storage.store import open_store


@dataclass(frozen=True, kw_only=True)
class SelftestResult:
    """The final states of an uninterrupted and a killed run of the same configuration."""

    uninterrupted: FinalState
    interrupted: FinalState
    killed_after: tuple[int, ...]
    differences: tuple[str, ...]


def run_selftest(
    config: str,
    out: Path,
    *,
    steps: int,
    kills: int,
    seed: int,
    report: Callable[[str], None],
) -> SelftestResult:
    """Train `steps` steps of a configuration (its YAML) twice below `out`.

    The second training is killed `kills` times. `report` receives progress messages.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.yaml").write_text(config)
    argv = ["--config", str(out / "config.yaml")]
    report(f"training {steps} steps without interruption …")
    subprocess_runs.run_command(
        subprocess_runs.FIT, _arguments(argv, out / "whole", steps), out / "whole.log"
    )
    killed_after = []
    for kill_step in draw_kill_steps(steps, kills, seed):
        killed_after.append(_train_killed(argv, out, steps, kill_step))
        report(f"killed with SIGKILL after step {killed_after[-1]} …")
    interrupted = out / "interrupted"
    subprocess_runs.run_command(
        subprocess_runs.FIT, _arguments(argv, interrupted, steps), out / "interrupted.log"
    )
    uninterrupted, other = (
        read_final_state(open_store(path)) for path in (out / "whole", interrupted)
    )
    return SelftestResult(
        uninterrupted=uninterrupted,
        interrupted=other,
        killed_after=tuple(killed_after),
        differences=tuple(differences(uninterrupted, other)),
    )


def draw_kill_steps(steps: int, kills: int, seed: int) -> list[int]:
    """Draw the steps to kill at in ascending order; the last step is never drawn."""
    possible = range(1, steps)
    return sorted(random.Random(seed).sample(possible, min(kills, len(possible))))


def _arguments(argv: Sequence[str], run: Path, steps: int) -> list[str]:
    """Return the arguments of one run: its own run directory, and frequent saves.

    Every step is recorded immediately, so that the kill comes at the intended step.
    """
    changes = {
        "run.dir": str(run),
        "stop.max_steps": str(steps),
        "checkpoint.every": str(max(1, steps // 5)),
        "logging.every": "1",
    }
    return [*argv, *(word for key, value in changes.items() for word in (f"--{key}", value))]


def _train_killed(argv: Sequence[str], out: Path, steps: int, kill_step: int) -> int:
    metrics = out / "interrupted" / "metrics.jsonl"
    subprocess_runs.run_and_kill(
        subprocess_runs.FIT,
        _arguments(argv, out / "interrupted", steps),
        out / "interrupted.log",
        lambda: subprocess_runs.last_step(metrics) >= kill_step,
    )
    return subprocess_runs.last_step(metrics)
